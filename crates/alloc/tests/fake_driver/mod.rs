//! The driver in `driver.c`, compiled and loaded as `libcuda.so.1` of this process.

#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::{CString, c_char, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// Statuses of the driver.
pub const OUT_OF_MEMORY: c_uint = 2;
pub const ILLEGAL_ADDRESS: c_uint = 700;
pub const LAUNCH_FAILED: c_uint = 719;

/// The driver's functions for tests, for one test at a time.
pub struct FakeDriver {
    library: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

/// A task in the driver's log, with its times by the device's clock in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedTask {
    pub name: String,
    pub stream: u32,
    pub from: u64,
    pub to: u64,
    pub bytes: usize,
}

/// Compiles the driver into a folder; the path of the library.
pub fn compile(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../alloc/tests/fake_driver/driver.c");
    let library = folder.join("libcuda.so.1");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
        "-pthread",
    ]);
    compiler.arg("-Wl,-soname,libcuda.so.1").arg(source).arg("-o").arg(&library);
    let output = compiler.output().expect("there is a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}

impl FakeDriver {
    /// The driver with an order of its own for the seed, and this much memory on each of its two devices.
    pub fn new(seed: u64, memory: usize) -> Self {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let library = LIBRARY.get_or_init(|| {
            let folder = std::env::temp_dir().join(format!("elbowroom-fake-driver-{}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a folder");
            // The linker finds a library by the name that it has in itself, once it is loaded: `libcuda.so.1` is this one from now on.
            // SAFETY: the library has no initializers.
            let library = unsafe { Library::open(Some(compile(&folder)), RTLD_NOW | RTLD_GLOBAL) };
            let library = library.expect("the driver loads");
            std::fs::remove_dir_all(&folder).expect("nobody needs the file any more");
            library
        });
        let driver = Self { library, _alone: alone };
        driver.reset(seed, memory);
        driver
    }

    fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the callers name the types of `driver.c`.
        unsafe { *self.library.get::<F>(name.as_bytes()).expect("the function is there") }
    }

    /// Forgets failures, the log and the peak; begins another order.
    pub fn reset(&self, seed: u64, memory: usize) {
        // SAFETY: the function's type.
        unsafe { self.symbol::<unsafe extern "C" fn(u64, usize)>("fake_reset")(seed, memory) };
    }

    /// After `after` successful calls of a function, one fails.
    pub fn fail(&self, function: &str, after: usize, status: c_uint) {
        let name = CString::new(function).expect("no zero");
        type Fail = unsafe extern "C" fn(*const c_char, isize, c_uint);
        // SAFETY: the function's type.
        unsafe { self.symbol::<Fail>("fake_fail")(name.as_ptr(), after as isize, status) };
    }

    /// Bytes that are allocated on a device.
    pub fn in_use(&self, device: i32) -> usize {
        // SAFETY: the function's type.
        unsafe { self.symbol::<unsafe extern "C" fn(i32) -> usize>("fake_in_use")(device) }
    }

    /// The most bytes that were allocated on a device since the last reset.
    pub fn peak(&self, device: i32) -> usize {
        // SAFETY: the function's type.
        unsafe { self.symbol::<unsafe extern "C" fn(i32) -> usize>("fake_peak")(device) }
    }

    /// The log as text.
    pub fn log(&self) -> String {
        let log = self.symbol::<unsafe extern "C" fn(*mut u8, usize) -> usize>("fake_log");
        // SAFETY: room for nothing, then for what there was.
        let text = unsafe {
            let mut text = vec![0; log(std::ptr::null_mut(), 0)];
            log(text.as_mut_ptr(), text.len());
            text
        };
        String::from_utf8(text).expect("text")
    }

    /// The tasks in the log.
    pub fn tasks(&self) -> Vec<LoggedTask> {
        let log = self.log();
        let task = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let (["stream", stream, "from", from, "to", to, "bytes", bytes], name) =
                (words.get(1..9)?, words[0])
            else {
                return None;
            };
            Some(LoggedTask {
                name: name.to_owned(),
                stream: stream.parse().ok()?,
                from: from.parse().ok()?,
                to: to.parse().ok()?,
                bytes: bytes.parse().ok()?,
            })
        };
        log.lines().filter_map(task).collect()
    }

    /// The nanoseconds during which a task of the first kind and one of the second were both in progress.
    pub fn overlap(&self, one: impl Fn(&LoggedTask) -> bool, other: impl Fn(&LoggedTask) -> bool) -> u64 {
        let tasks = self.tasks();
        let others: Vec<&LoggedTask> = tasks.iter().filter(|task| other(task)).collect();
        let with = |task: &LoggedTask| -> u64 {
            others.iter().map(|other| task.to.min(other.to).saturating_sub(task.from.max(other.from))).sum()
        };
        tasks.iter().filter(|task| one(task)).map(with).sum()
    }

    /// Issues a kernel to a stream: a function that finds its operands with the given [`View`].
    pub fn launch(&self, stream: *mut c_void, nanos: u64, kernel: impl FnOnce(View) + 'static) -> c_uint {
        type Kernel = Box<dyn FnOnce(View)>;
        unsafe extern "C" fn call(argument: *mut c_void) {
            // SAFETY: the box made below; the driver runs a kernel once.
            let (kernel, view) = *unsafe { Box::from_raw(argument.cast::<(Kernel, View)>()) };
            kernel(view);
        }
        type Launch =
            unsafe extern "C" fn(*mut c_void, unsafe extern "C" fn(*mut c_void), *mut c_void, u64) -> c_uint;
        let view = View(self.symbol("fake_view"));
        let argument: Box<(Kernel, View)> = Box::new((Box::new(kernel), view));
        // SAFETY: the function's type.
        unsafe { self.symbol::<Launch>("fake_launch")(stream, call, Box::into_raw(argument).cast(), nanos) }
    }
}

/// How a kernel reaches bytes of the device.
#[derive(Clone, Copy)]
pub struct View(unsafe extern "C" fn(u64, usize) -> *mut u8);

impl View {
    /// The bytes at an address, while the kernel runs.
    pub fn bytes<'a>(self, address: usize, bytes: usize) -> &'a mut [u8] {
        // SAFETY: the driver returns bytes that only it and its kernels use, one at a time.
        unsafe {
            let start = (self.0)(address as u64, bytes);
            assert!(!start.is_null(), "a kernel uses {bytes} bytes at {address:#x}, where there are none");
            std::slice::from_raw_parts_mut(start, bytes)
        }
    }
}
