//! The programs, and what each needs in its folder.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The file in which a program leaves the lines of `/proc/self/status` that say what it still has resident once its work is done and two and a
/// half seconds have passed.
pub const LEFT: &str = "left";

/// A program that is ready to run.
pub struct Prepared {
    pub command: Vec<String>,
    /// Removes from the output what differs from run to run, such as times.
    pub comparable: fn(&str) -> String,
}

type Prepare = fn(&Path) -> Result<Prepared, Box<dyn Error>>;

pub fn programs() -> Vec<(&'static str, Prepare)> {
    vec![
        ("CPython, numpy.linalg's tests", |_| numpy("numpy.linalg")),
        ("CPython, numpy.random's tests", |_| numpy("numpy.random.tests.test_generator_mt19937")),
        ("CPython, numpy's tests of arrays", |_| numpy("numpy._core.tests.test_multiarray")),
        ("node", node),
        ("git", git),
        ("cargo", cargo),
        ("sqlite", sqlite),
        ("shell, 3,000 forks", forks),
        ("320 threads", |_| own(super::threads::ARGUMENT)),
        ("larson, 2 threads, 1 to 60 KB", |_| own(super::larson::ARGUMENT)),
    ]
}

fn exact(output: &str) -> String {
    output.to_owned()
}

fn prepared(command: &[&str]) -> Prepared {
    Prepared { command: command.iter().map(|&word| word.to_owned()).collect(), comparable: exact }
}

/// Runs a command to its end. An error if it does not exist or fails.
fn succeed(command: &mut Command) -> Result<(), Box<dyn Error>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{name}: {}", text.lines().last().unwrap_or("it failed")).into())
}

fn numpy(module: &str) -> Result<Prepared, Box<dyn Error>> {
    let python = std::env::var("ELBOWROOM_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    succeed(Command::new(&python).args(["-c", "import numpy, pytest, hypothesis"]))?;
    let script = format!(
        r#"
import gc, pytest, sys, time
code = pytest.main(["-q", "-p", "no:cacheprovider", "--disable-warnings", "--pyargs", "{module}"])
gc.collect()
time.sleep(2.5)
open("{LEFT}", "w").write(open("/proc/self/status").read())
sys.exit(code)
"#
    );
    let command = [python.as_str(), "-c", &script].map(str::to_owned).to_vec();
    // The last line says how long it took.
    let comparable = |output: &str| {
        output
            .lines()
            .map(|line| line.split_once(" in ").map_or(line, |(head, _)| head))
            .collect::<Vec<_>>()
            .join("\n")
    };
    Ok(Prepared { command, comparable })
}

fn node(folder: &Path) -> Result<Prepared, Box<dyn Error>> {
    succeed(Command::new("node").arg("--version"))?;
    let script = r"
const crypto = require('crypto'), fs = require('fs'), zlib = require('zlib');
let seed = 1n;
const random = () => Number((seed = (seed * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn) >> 40n);
const rows = [];
for (let i = 0; i < 60000; i++) rows.push({ id: i, name: 'row ' + random(), tags: [random() % 9, random() % 99] });
const hash = crypto.createHash('sha256');
for (let round = 0; round < 6; round++) {
  const text = JSON.stringify(rows);
  const packed = zlib.gzipSync(Buffer.from(text), { level: 1 });
  const back = JSON.parse(zlib.gunzipSync(packed).toString());
  back.sort((a, b) => a.name < b.name ? -1 : 1);
  const groups = new Map();
  for (const row of back) groups.set(row.tags[1], (groups.get(row.tags[1]) || 0) + row.id);
  hash.update(JSON.stringify([...groups]));
  for (let i = 0; i < 2000; i++) hash.update(Buffer.alloc(1000 + random() % 60000, i & 255));
}
console.log(hash.digest('hex'));
rows.length = 0;
setTimeout(() => fs.writeFileSync('left', fs.readFileSync('/proc/self/status')), 2500);
";
    std::fs::write(folder.join("script.js"), script)?;
    Ok(prepared(&["node", "script.js"]))
}

fn git(folder: &Path) -> Result<Prepared, Box<dyn Error>> {
    succeed(Command::new("git").args(["init", "--quiet", "--bare", "repository"]).current_dir(folder))?;
    let mut stream = String::new();
    let mut lines: Vec<u64> = (0..400).collect();
    for commit in 0..600u64 {
        for (at, line) in lines.iter_mut().enumerate() {
            if (at as u64 * 7 + commit * 13).is_multiple_of(41) {
                *line = line.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(commit);
            }
        }
        let text: String = lines.iter().map(|line| format!("line {line:x} of a file\n")).collect();
        let (when, message) = (1_600_000_000 + commit, format!("change {commit}"));
        writeln!(stream, "commit refs/heads/main\ncommitter A <a@example.org> {when} +0000")?;
        writeln!(stream, "data {}\n{message}", message.len())?;
        writeln!(stream, "M 644 inline file{}\ndata {}\n{text}", commit % 20, text.len())?;
    }
    std::fs::write(folder.join("stream"), stream)?;
    let import = "git --git-dir=repository fast-import --quiet < stream";
    succeed(Command::new("sh").args(["-c", import]).current_dir(folder))?;
    let script =
        "git --git-dir=repository repack -adfq --threads=1 && git --git-dir=repository log -p main | cksum";
    Ok(prepared(&["sh", "-c", script]))
}

fn cargo(folder: &Path) -> Result<Prepared, Box<dyn Error>> {
    succeed(Command::new("cargo").arg("--version"))?;
    let mut source = String::from("#![allow(dead_code)]\n");
    for i in 0..300 {
        writeln!(source, "#[derive(Clone, Debug, Default, PartialEq, PartialOrd, Eq, Ord, Hash)]")?;
        writeln!(source, "pub struct S{i} {{ a: u64, b: Vec<String>, c: Option<Box<u8>> }}")?;
        writeln!(
            source,
            "impl S{i} {{ pub fn f(&self) -> usize {{ self.b.iter().map(|s| s.len()).filter(|n| n % 2 == 0).sum() }} }}"
        )?;
    }
    std::fs::create_dir_all(folder.join("small/src"))?;
    std::fs::write(folder.join("small/src/lib.rs"), source)?;
    let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n";
    std::fs::write(folder.join("small/Cargo.toml"), manifest)?;
    Ok(prepared(&[
        "sh",
        "-c",
        "cd small && rm -rf target && CARGO_TARGET_DIR=target cargo check --offline -q && ls target/debug",
    ]))
}

fn sqlite(folder: &Path) -> Result<Prepared, Box<dyn Error>> {
    succeed(Command::new("sqlite3").arg("--version"))?;
    let script = "
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, value REAL);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)
  INSERT INTO t SELECT i, 'row ' || (i * 7919 % 100003), i * 0.5 FROM n;
CREATE INDEX by_name ON t(name);
UPDATE t SET value = value + 1 WHERE id % 3 = 0;
SELECT substr(name, 1, 6) AS head, count(*), sum(value) FROM t GROUP BY head ORDER BY head;
SELECT a.id, b.id FROM t a JOIN t b ON a.name = b.name WHERE a.id <= 200 ORDER BY a.id;
DELETE FROM t WHERE id % 5 = 0;
SELECT group_concat(name) FROM (SELECT name FROM t ORDER BY name LIMIT 1000);
DROP TABLE t;
VACUUM;
.shell sleep 2.5; cat /proc/$PPID/status > left
";
    std::fs::write(folder.join("script.sql"), script)?;
    Ok(prepared(&["sqlite3", ":memory:", ".read script.sql"]))
}

fn forks(_: &Path) -> Result<Prepared, Box<dyn Error>> {
    let script = "i=0; while [ $i -lt 1000 ]; do x=$(echo $i); (exit 0); /bin/true; i=$((i + 1)); done; echo $x; \
         sleep 2.5; cat /proc/$$/status > left";
    Ok(prepared(&["sh", "-c", script]))
}

/// Waits as [`LEFT`] says, and leaves what this process has resident.
pub fn leave_status() -> std::io::Result<()> {
    std::thread::sleep(std::time::Duration::from_millis(2_500));
    std::fs::write(LEFT, std::fs::read("/proc/self/status")?)
}

/// A program that this example runs as, with this argument.
fn own(argument: &str) -> Result<Prepared, Box<dyn Error>> {
    let own = std::env::current_exe()?;
    Ok(prepared(&[&own.to_string_lossy(), argument]))
}
