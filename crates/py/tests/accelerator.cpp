// An accelerator for tests: PyTorch's device `PrivateUse1`, simulated on the CPU, on which a missing wait shows.
//
// Operators return at once and run later. Every stream is a queue; every kernel and every copy in it takes a time that a seed draws, and so does
// every call of the host. A queued task runs when the simulated clock reaches its end, so one seed is one order of the streams, every time.
// Nothing but stream order, events and synchronization orders anything.
//
// - Memory has a limit in bytes. It is mapped twice: at the addresses that tensors show, where every access is a fault, and where kernels
//   read and write it. The host can therefore read device memory by a copy only.
// - Freed memory is used again at once by the stream that it was allocated for, as PyTorch's caching allocator does, unless `record_stream`
//   named another stream. A seed draws which of it: a block may be part of a freed one, or lie in several neighbours.
// - A kernel may take a workspace, which is any memory of its stream that is free when it is issued. So when it runs, it overwrites all of that:
//   what still uses a freed block unordered finds poison, and what uses a block too early is overwritten.
// - A log has every task with its times, and every wait.
//
// Kernels are those of the CPU. Shapes of results come from PyTorch's functions for tensors without memory.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

// Addresses of the device.
constexpr size_t kSpace = size_t(16) << 30;
constexpr size_t kGranule = 256, kPoisoned = 16, kRecent = 16;
constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kType, 0);

// --- random numbers ---------------------------------------------------------------------------------------------------------------------

uint64_t mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

struct Random {
  uint64_t state = 0;
  uint64_t next() { return mixed(state++); }
  double unit() { return (next() >> 11) * 0x1.0p-53; }
};

// --- streams, events, memory ------------------------------------------------------------------------------------------------------------

// What has been recorded on an event, by generation: the time at which the stream reached it, or none yet.
struct Event {
  int id = 0;
  uint64_t issued = 0, reached = 0;
  double at = 0;
  int stream = -1;
};

struct Task {
  std::string what;
  std::function<void()> run;
  double issued = 0, lasts = 0;
  std::shared_ptr<Event> event;
  uint64_t record = 0, wait = 0;
};

struct Queue {
  std::deque<Task> tasks;
  // When it is free, and how long its tasks take compared with calls of the host; drawn when it is first used.
  double free = 0, scale = 0;
  uint64_t issued = 0, done = 0;
};

struct Block {
  size_t offset, bytes, size;
  int stream;
  std::map<int, uint64_t> used;
};

struct Device {
  std::recursive_mutex mutex;
  char *address = nullptr, *shadow = nullptr;
  size_t limit = kSpace, used = 0, peak = 0, top = kGranule;
  // For each stream, its free memory from offset to size, and the blocks that were freed last, the latest one at the end.
  std::map<int, std::map<size_t, size_t>> free;
  std::map<int, std::vector<size_t>> recent;
  std::vector<Block> waiting;
  std::unordered_map<void*, Block> blocks;
  std::map<int, Queue> queues;
  bool asynchronous = false, logging = false;
  Random random;
  // The clock of the host, the end of the last task, and how long a call of the host takes.
  double now = 0, ended = 0, host = 1;
  int next_stream = 1, next_event = 1;
  uint64_t rng_seed = 0, rng_offset = 0;
  std::string error, log;

  Device() {
    const int file = memfd_create("accelerator", MFD_CLOEXEC);
    TORCH_CHECK(file >= 0 && ftruncate(file, kSpace) == 0, "no memory for the simulated device");
    const int flags = MAP_SHARED | MAP_NORESERVE;
    address = static_cast<char*>(mmap(nullptr, kSpace, PROT_NONE, flags, file, 0));
    shadow = static_cast<char*>(mmap(nullptr, kSpace, PROT_READ | PROT_WRITE, flags, file, 0));
    close(file);
    TORCH_CHECK(address != MAP_FAILED && shadow != MAP_FAILED, "no addresses for the simulated device");
  }

  bool owns(const void* pointer) const { return pointer >= address && pointer < address + kSpace; }

  void* visible(const void* pointer) const { return shadow + (static_cast<const char*>(pointer) - address); }

  Queue& queue(int stream) { return queues[stream]; }

  void note(const std::string& line) {
    if (logging) log += line + "\n";
  }

  // Enqueues a task, and lets the clock advance by one call of the host.
  void enqueue(int stream, Task task) {
    Queue& into = queue(stream);
    if (!into.scale) into.scale = std::pow(10.0, 4 * random.unit() - 2);
    task.issued = now;
    if (asynchronous && !task.event) task.lasts = -std::log(1 - random.unit()) * into.scale;
    into.tasks.push_back(std::move(task));
    into.issued++;
    if (asynchronous) {
      now += -std::log(1 - random.unit()) * host;
      advance(now);
    } else {
      advance(std::numeric_limits<double>::infinity());
    }
  }

  // Runs the task that ends first, if it ends by `until`.
  bool step(double until) {
    Queue* first = nullptr;
    int stream = 0;
    double end = until;
    for (auto& [number, queue] : queues) {
      if (queue.tasks.empty()) continue;
      const Task& task = queue.tasks.front();
      double begins = std::max(queue.free, task.issued);
      if (task.wait) {
        if (task.event->reached < task.wait) continue;
        begins = std::max(begins, task.event->at);
      }
      if (begins + task.lasts < end || (!first && begins + task.lasts <= end)) {
        first = &queue, stream = number, end = begins + task.lasts;
      }
    }
    if (!first) return false;
    Task task = std::move(first->tasks.front());
    first->tasks.pop_front();
    first->free = ended = end;
    first->done++;
    if (task.run) {
      note("run " + std::to_string(stream) + " " + std::to_string(end - task.lasts) + " " + std::to_string(end) + " " + task.what);
      try {
        task.run();
      } catch (const std::exception& failure) {
        if (error.empty()) error = task.what + ": " + failure.what();
      }
    }
    if (task.record) {
      task.event->reached = std::max(task.event->reached, task.record);
      task.event->at = end;
    }
    return true;
  }

  void advance(double until) {
    while (step(until)) {
    }
  }

  // Runs tasks until a condition holds. The host goes on when it does.
  template <typename Condition>
  void until(Condition holds) {
    while (!holds() && step(std::numeric_limits<double>::infinity())) now = std::max(now, ended);
  }

  void synchronize(int stream) {
    Queue& wanted = queue(stream);
    const uint64_t position = wanted.issued;
    until([&] { return wanted.done >= position; });
  }

  void synchronize() {
    std::vector<int> numbers;
    for (auto& [number, _] : queues) numbers.push_back(number);
    for (int number : numbers) synchronize(number);
  }

  // A kernel that failed is reported by the next synchronization, as on a GPU.
  void raise() {
    if (error.empty()) return;
    std::string failed;
    failed.swap(error);
    TORCH_CHECK(false, "the simulated device failed in ", failed);
  }

  void record(Event& event, std::shared_ptr<Event> shared, int stream) {
    event.issued++;
    event.stream = stream;
    note("record " + std::to_string(stream) + " event " + std::to_string(event.id) + "." + std::to_string(event.issued));
    Task task;
    task.what = "record", task.event = std::move(shared), task.record = event.issued;
    enqueue(stream, std::move(task));
  }

  void wait(std::shared_ptr<Event> event, int stream) {
    if (!event->issued) return;
    note("wait " + std::to_string(stream) + " event " + std::to_string(event->id) + "." + std::to_string(event->issued) + " of " + std::to_string(event->stream));
    Task task;
    task.what = "wait", task.wait = event->issued, task.event = std::move(event);
    enqueue(stream, std::move(task));
  }

  // Memory

  void* allocate(size_t bytes, int stream) {
    if (!bytes) return nullptr;
    reclaim();
    if (used + bytes > limit && !waiting.empty()) {
      synchronize();
      reclaim();
    }
    TORCH_CHECK_WITH(
        OutOfMemoryError, used + bytes <= limit, "the simulated device is out of memory: ", bytes, " bytes wanted, ", used, " of ", limit, " in use");
    const size_t size = (bytes + kGranule - 1) / kGranule * kGranule;
    Block block{take(size, stream), bytes, size, stream, {}};
    if (!block.offset) {
      block.offset = top;
      top += size;
      TORCH_CHECK(top <= kSpace, "the simulated device has no addresses left");
    }
    used += bytes;
    peak = std::max(peak, used);
    blocks.emplace(address + block.offset, block);
    return address + block.offset;
  }

  // The offset of a part of a stream's free memory that has this size, or 0 if there is none.
  size_t take(size_t size, int stream) {
    auto& ranges = free[stream];
    std::vector<std::pair<size_t, size_t>> fitting;
    for (auto& [offset, length] : ranges)
      if (length >= size) fitting.emplace_back(offset, length);
    if (fitting.empty()) return 0;
    // As often as not the memory that was freed last, where a copy most likely still uses it.
    auto [first, length] = fitting[asynchronous ? random.next() % fitting.size() : 0];
    size_t at = asynchronous && random.next() % 2 ? first + length - size : first;
    if (!asynchronous || random.next() % 2) {
      auto& latest = recent[stream];
      for (auto freed = latest.rbegin(); freed != latest.rend(); ++freed) {
        auto range = ranges.upper_bound(*freed);
        if (range == ranges.begin()) continue;
        --range;
        if (range->first + range->second <= *freed || range->second < size) continue;
        first = range->first, length = range->second;
        at = std::min(*freed, first + length - size);
        break;
      }
    }
    ranges.erase(first);
    if (at > first) ranges[first] = at - first;
    if (at + size < first + length) ranges[at + size] = first + length - at - size;
    return at;
  }

  void release(void* pointer) {
    auto found = blocks.find(pointer);
    if (found == blocks.end()) return;
    Block block = found->second;
    blocks.erase(found);
    if (block.used.empty()) {
      make_free(block);
    } else {
      for (auto& [stream, position] : block.used) position = queue(stream).issued;
      waiting.push_back(std::move(block));
    }
  }

  // Blocks that `record_stream` named are free when those streams have passed.
  void reclaim() {
    std::vector<Block> still;
    for (Block& block : waiting) {
      bool passed = true;
      for (auto& [stream, position] : block.used) passed &= queue(stream).done >= position;
      if (passed) {
        make_free(block);
      } else {
        still.push_back(std::move(block));
      }
    }
    waiting.swap(still);
  }

  void make_free(const Block& block) {
    used -= block.bytes;
    auto& ranges = free[block.stream];
    auto made = ranges.emplace(block.offset, block.size).first;
    auto next = std::next(made);
    if (next != ranges.end() && made->first + made->second == next->first) {
      made->second += next->second;
      ranges.erase(next);
    }
    if (made != ranges.begin()) {
      auto previous = std::prev(made);
      if (previous->first + previous->second == made->first) {
        previous->second += made->second;
        ranges.erase(made);
      }
    }
    auto& latest = recent[block.stream];
    latest.push_back(block.offset);
    if (latest.size() > kRecent) latest.erase(latest.begin());
  }

  // Overwrites the beginning of every granule of free memory: whatever block begins there is hit, and all bytes would take longer than kernels.
  void poison(size_t offset, size_t size) {
    for (size_t at = offset; at < offset + size; at += kGranule) memset(shadow + at, 0xff, kPoisoned);
  }

  // Enqueues a kernel, whose workspace is what is free now.
  void launch(int stream, Task task) {
    std::vector<std::pair<size_t, size_t>> workspace(free[stream].begin(), free[stream].end());
    task.run = [this, workspace = std::move(workspace), run = std::move(task.run)] {
      for (auto [offset, size] : workspace) poison(offset, size);
      run();
    };
    enqueue(stream, std::move(task));
  }
};

// Tensors may be freed while the process ends, after destructors have run.
Device& device() {
  static Device* made = new Device();
  return *made;
}

using Lock = std::lock_guard<std::recursive_mutex>;

thread_local int current_stream = 0;

// --- what PyTorch asks of a device ------------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(int number) { return c10::Stream(c10::Stream::UNSAFE, kDevice, number); }
  static int number(const c10::Stream& stream) { return static_cast<int>(stream.id()); }
  static std::shared_ptr<Event>& event(void* event) { return *static_cast<std::shared_ptr<Event>*>(event); }

  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return getNewStream(kDevice, 0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    Lock lock(device().mutex);
    return stream(device().next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream wanted) const override {
    const int before = current_stream;
    current_stream = number(wanted);
    return stream(before);
  }
  void destroyEvent(void* made, const c10::DeviceIndex) const noexcept override { delete static_cast<std::shared_ptr<Event>*>(made); }
  void record(void** made, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag) const override {
    Lock lock(device().mutex);
    if (!*made) {
      auto* fresh = new std::shared_ptr<Event>(std::make_shared<Event>());
      (*fresh)->id = device().next_event++;
      *made = fresh;
    }
    device().record(*event(*made), event(*made), number(on));
  }
  void block(void* made, const c10::Stream& on) const override {
    Lock lock(device().mutex);
    if (made) device().wait(event(made), number(on));
  }
  bool queryEvent(void* made) const override {
    Lock lock(device().mutex);
    return !made || event(made)->reached >= event(made)->issued;
  }
  void synchronizeEvent(void* made) const override {
    Lock lock(device().mutex);
    if (!made) return;
    auto wanted = event(made);
    device().until([&] { return wanted->reached >= wanted->issued; });
    device().raise();
  }
  bool queryStream(const c10::Stream& on) const override {
    Lock lock(device().mutex);
    return device().queue(number(on)).tasks.empty();
  }
  void synchronizeStream(const c10::Stream& on) const override {
    Lock lock(device().mutex);
    device().synchronize(number(on));
    device().raise();
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    Lock lock(device().mutex);
    device().synchronize();
    device().raise();
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& on) const override {
    Lock lock(device().mutex);
    auto found = device().blocks.find(data.get());
    if (found != device().blocks.end() && found->second.stream != number(on)) found->second.used[number(on)] = 0;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void freed_data(void* pointer) {
  Lock lock(device().mutex);
  device().release(pointer);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    Lock lock(device().mutex);
    void* made = device().allocate(bytes, current_stream);
    return {made, made, &freed_data, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &freed_data; }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "storages of the device are copied by operators"); }
};

Allocator allocator;
REGISTER_ALLOCATOR(kType, &allocator);

// Host memory that copies may use while the host goes on. What is freed stays until every stream has passed.
struct Pinned final : at::HostAllocator {
  struct Freed {
    void* pointer;
    std::map<int, uint64_t> positions;
  };
  static std::map<const char*, size_t>& ranges() {
    static auto* made = new std::map<const char*, size_t>();
    return *made;
  }
  static std::vector<Freed>& freed() {
    static auto* made = new std::vector<Freed>();
    return *made;
  }
  static void free_pinned(void* pointer) {
    if (!pointer) return;
    Lock lock(device().mutex);
    ranges().erase(static_cast<char*>(pointer));
    Freed now{pointer, {}};
    for (auto& [stream, queue] : device().queues) now.positions[stream] = queue.issued;
    freed().push_back(std::move(now));
  }
  static void reclaim() {
    std::vector<Freed> still;
    for (Freed& waiting : freed()) {
      bool passed = true;
      for (auto& [stream, position] : waiting.positions) passed &= device().queue(stream).done >= position;
      if (passed) {
        std::free(waiting.pointer);
      } else {
        still.push_back(std::move(waiting));
      }
    }
    freed().swap(still);
  }
  static bool holds(const void* pointer) {
    Lock lock(device().mutex);
    auto after = ranges().upper_bound(static_cast<const char*>(pointer));
    if (after == ranges().begin()) return false;
    --after;
    return static_cast<const char*>(pointer) < after->first + after->second;
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (!bytes) return {nullptr, nullptr, &free_pinned, c10::kCPU};
    Lock lock(device().mutex);
    reclaim();
    void* made = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(made, 0xff, bytes);
    ranges()[static_cast<char*>(made)] = bytes;
    return {made, made, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { memcpy(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

Pinned pinned;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return Pinned::holds(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  c10::Device getDeviceFromPtr(void*) const override { return kDevice; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override;
};

// --- operators --------------------------------------------------------------------------------------------------------------------------

using Stack = torch::jit::Stack;

// Kernels and shapes are computed as if no gradients were recorded and no mode of Python were active.
struct Plain {
  c10::impl::ExcludeDispatchKeyGuard guard{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(c10::DispatchKey::Python) |
      c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot)};
};

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// A tensor of the host that shows the same bytes; it does not keep them.
at::Tensor shown(const at::Tensor& tensor) {
  if (!is_ours(tensor)) return tensor;
  const auto options = tensor.options().device(c10::kCPU);
  if (!tensor.numel()) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  return at::from_blob(device().visible(tensor.mutable_data_ptr()), tensor.sizes(), tensor.strides(), options);
}

c10::IValue mapped(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& map, c10::DeviceType to) {
  if (value.isTensor()) return value.toTensor().defined() ? c10::IValue(map(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& tensor : value.toTensorVector()) made.push_back(map(tensor));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const auto& tensor : value.toOptionalTensorVector()) made.push_back(tensor && tensor->defined() ? std::make_optional(map(*tensor)) : std::nullopt);
    return made;
  }
  if (value.isDevice() && value.toDevice().type() == kType) return c10::Device(to);
  return value;
}

at::Tensor without_memory(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
}

at::Tensor fresh(const at::Tensor& like) {
  if (!like.defined()) return like;
  return at::detail::empty_strided_generic(like.sizes(), like.strides(), &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), like.scalar_type());
}

void collect(const c10::IValue& value, std::vector<at::Tensor>& into) {
  if (value.isTensor()) {
    into.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) into.push_back(tensor);
  }
}

// The numbers that a kernel draws are those of the place at which it was issued, whenever it runs.
struct Seeded {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::optional<at::Tensor> before;
  explicit Seeded(std::optional<uint64_t> seed) {
    if (!seed) return;
    before = generator.get_state();
    generator.set_current_seed(*seed);
  }
  ~Seeded() {
    if (before) generator.set_state(*before);
  }
};

// The results of an operator as tensors without memory; where PyTorch does not know their shapes, or where they depend on values, the host waits
// and computes them.
Stack shapes(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  Stack stack;
  try {
    for (const auto& value : arguments) stack.push_back(mapped(value, without_memory, c10::kMeta));
    op.callBoxed(stack);
    return stack;
  } catch (const c10::Error&) {
  }
  Lock lock(device().mutex);
  device().synchronize();
  stack.clear();
  auto copied = [](const at::Tensor& tensor) { return tensor.defined() ? shown(tensor).clone() : tensor; };
  for (const auto& value : arguments) stack.push_back(mapped(value, copied, c10::kCPU));
  Seeded seeded(0);
  op.callBoxed(stack);
  return stack;
}

// Issues an operator to the current stream.
void run(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  std::vector<c10::IValue> arguments(stack->end() - count, stack->end());
  stack->resize(stack->size() - count);
  Plain plain;

  // Results that are arguments which the operator writes, and results that are new.
  std::vector<c10::IValue> results;
  std::vector<bool> is_new;
  bool values = false, made = false;
  for (const auto& result : schema.returns()) {
    const auto* alias = result.alias_info();
    results.emplace_back();
    is_new.push_back(!alias);
    if (alias) {
      TORCH_CHECK(alias->isWrite(), "the simulated device does not know the view ", schema.operator_name());
      for (size_t at = 0; at < count; at++) {
        const auto* other = schema.arguments()[at].alias_info();
        if (other && other->isWrite() && other->beforeSets() == alias->beforeSets()) results.back() = arguments[at];
      }
    } else {
      const bool tensors = result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->isSubtypeOf(*c10::ListType::ofTensors());
      (tensors ? made : values) = true;
    }
  }
  if (values) {
    // The host needs the answer, so it waits.
    Lock lock(device().mutex);
    device().synchronize(current_stream);
    device().raise();
    Stack own;
    for (const auto& value : arguments) own.push_back(mapped(value, shown, c10::kCPU));
    op.callBoxed(own);
    for (auto& value : own) stack->push_back(mapped(value, [](const at::Tensor& t) { return t; }, kType));
    return;
  }
  bool resizes = made;
  for (size_t at = 0; at < results.size(); at++)
    if (!is_new[at] && results[at].isTensor() && results[at].toTensor().defined() && !results[at].toTensor().numel()) resizes = true;
  if (resizes) {
    const Stack known = shapes(op, arguments);
    for (size_t at = 0; at < results.size(); at++) {
      if (is_new[at]) {
        results[at] = mapped(known[at], fresh, kType);
      } else if (results[at].isTensor() && results[at].toTensor().defined() && known[at].toTensor().sizes() != results[at].toTensor().sizes()) {
        at::native::resize_(results[at].toTensor(), known[at].toTensor().sizes(), std::nullopt);
      }
    }
  }

  Lock lock(device().mutex);
  Stack own;
  std::vector<at::Tensor> copies;
  for (const auto& value : arguments) {
    // A number of the host is part of the launch.
    auto take = [](const at::Tensor& tensor) { return !tensor.defined() ? tensor : is_ours(tensor) ? shown(tensor) : tensor.clone(); };
    own.push_back(mapped(value, take, c10::kCPU));
  }
  std::vector<std::pair<size_t, std::vector<at::Tensor>>> into;
  for (size_t at = 0; at < results.size(); at++) {
    if (!is_new[at]) continue;
    std::vector<at::Tensor> places;
    collect(results[at], places);
    for (auto& place : places) place = place.defined() ? shown(place) : place;
    into.emplace_back(at, std::move(places));
  }
  std::optional<uint64_t> seed;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) seed = mixed(device().rng_seed ^ mixed(device().rng_offset++));
  Task task;
  task.what = schema.name();
  task.run = [op, own, into, seed]() mutable {
    Plain plain;
    Seeded seeded(seed);
    op.callBoxed(own);
    for (auto& [at, places] : into) {
      std::vector<at::Tensor> computed;
      collect(own[at], computed);
      TORCH_CHECK(computed.size() == places.size(), "another number of results than expected");
      for (size_t place = 0; place < places.size(); place++)
        if (places[place].defined() && places[place].numel()) places[place].copy_(computed[place]);
    }
  };
  device().launch(current_stream, std::move(task));
  for (auto& result : results) stack->push_back(std::move(result));
}

// In deterministic mode a GPU fills what is new, by a kernel on the current stream.
at::Tensor filled(at::Tensor made) {
  const auto& context = at::globalContext();
  if (made.numel() && context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) at::native::fill_empty_deterministic_(made);
  return made;
}

at::Tensor empty_memory_format(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  return filled(at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device>,
    std::optional<bool>) {
  return filled(at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype)));
}

// A copy between two tensors of which at least one lies on the device.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  Plain plain;
  Lock lock(device().mutex);
  const bool into = !is_ours(from), out = !is_ours(to);
  const at::Tensor& host = into ? from : to;
  const bool asynchronous = (!into && !out) || (non_blocking && Pinned::holds(host.const_data_ptr()));
  at::Tensor source = shown(from), target = shown(to);
  // What is not pinned is taken at once into memory of the driver's.
  if (into && !asynchronous) source = source.clone();
  const int64_t bytes = static_cast<int64_t>(to.nbytes());
  Task task;
  task.what = (into ? "copy to device " : out ? "copy to host " : "copy ") + std::to_string(bytes);
  task.run = [source, target]() mutable {
    Plain plain;
    target.copy_(source);
  };
  if (into || out) {
    device().enqueue(current_stream, std::move(task));
  } else {
    device().launch(current_stream, std::move(task));
  }
  if (!asynchronous && !(into && non_blocking)) {
    device().synchronize(current_stream);
    device().raise();
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  Plain plain;
  Lock lock(device().mutex);
  device().synchronize(current_stream);
  device().raise();
  return shown(tensor).item();
}

void record_stream(at::Tensor& tensor, c10::Stream stream) { Guard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream); }

at::Tensor as_strided(const at::Tensor& tensor, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(tensor, size, stride, offset);
}

at::Tensor& set_storage_offset(at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  return at::cpu::set_(tensor, std::move(storage), offset, size, stride);
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage) {
  const int64_t count = static_cast<int64_t>(storage.nbytes() / tensor.dtype().itemsize());
  return at::cpu::set_(tensor, std::move(storage), 0, {count}, {1});
}

// Scaled dot products are computed by operators that all devices have.
int64_t fused_sdp_choice(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) {
  return 0;
}

void Hooks::resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const {
  Lock lock(device().mutex);
  c10::DataPtr made = allocator.allocate(bytes);
  const size_t kept = std::min(bytes, storage.nbytes());
  if (kept) {
    void *to = device().visible(made.get()), *from = device().visible(storage.data());
    Task task;
    task.what = "copy " + std::to_string(kept);
    task.run = [to, from, kept] { memcpy(to, from, kept); };
    device().enqueue(current_stream, std::move(task));
  }
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(made));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("record_stream", record_stream);
  m.impl("as_strided", as_strided);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &at::native::resize_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("_fused_sdp_choice", fused_sdp_choice);
  // Their general kernels ask for one of the device's own, make tensors in between, or make a result larger before it becomes smaller.
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "mse_loss", "smooth_l1_loss", "huber_loss"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
}

[[maybe_unused]] const bool registered = [] {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  at::setHostAllocator(kType, &pinned);
  return true;
}();

} // namespace

// --- what a test sets and reads ---------------------------------------------------------------------------------------------------------

extern "C" {

// Ends all tasks; from now on the device has `limit` bytes. A negative seed runs every task when it is issued, any other draws an order.
void accelerator_begin(uint64_t limit, int64_t seed, int logging) {
  Device& d = device();
  Lock lock(d.mutex);
  d.synchronize();
  d.reclaim();
  Pinned::reclaim();
  d.queues.clear();
  // No run finds what an earlier one has left.
  for (auto& [_, ranges] : d.free)
    for (auto [offset, size] : ranges) d.poison(offset, size);
  d.error.clear();
  d.limit = limit, d.peak = d.used, d.asynchronous = seed >= 0, d.logging = logging;
  d.random.state = mixed(static_cast<uint64_t>(seed));
  d.now = d.ended = 0, d.host = std::pow(10.0, 2 * d.random.unit() - 1);
  d.log.clear();
}

uint64_t accelerator_used() {
  Lock lock(device().mutex);
  return device().used;
}

uint64_t accelerator_peak() {
  Lock lock(device().mutex);
  return device().peak;
}

const char* accelerator_log() {
  return device().log.c_str();
}

void accelerator_rng(uint64_t* seed, uint64_t* offset, int write) {
  Lock lock(device().mutex);
  if (write) {
    device().rng_seed = *seed, device().rng_offset = *offset;
  } else {
    *seed = device().rng_seed, *offset = device().rng_offset;
  }
}
}
