#include "tests/runtime/fake_device.h"

#include <algorithm>
#include <cstring>

#include "ir/diagnostic.h"
#include "runtime/cuda/kernels/reduction.h"

namespace shardc::testing {
namespace {

constexpr size_t kAlignment = 256;

template <typename Handle>
Handle AsHandle(int id) {
  return reinterpret_cast<Handle>(static_cast<uintptr_t>(id) + 1);
}

bool Overlap(const FakeDevice::Touch& a, const FakeDevice::Touch& b) {
  return (a.write || b.write) && a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

thread_local FakeDevice* current_device = nullptr;

}  // namespace

FakeDevice::~FakeDevice() {
  if (current_device == this) current_device = nullptr;
}

FakeDevice* FakeDevice::Current() { return current_device; }
void FakeDevice::Activate() { current_device = this; }

void FakeDevice::CheckCurrent() const {
  SHARDC_CHECK(current_device == this, "another device is that of this thread");
}

void FakeDevice::CheckPinned(const std::byte* host) const {
  if (!capturing_) return;
  auto after = memory_.upper_bound(host);
  const bool pinned = after != memory_.begin() && (--after)->second.on_host &&
                      host < after->first + after->second.bytes;
  SHARDC_CHECK(pinned, "a copy from or to pageable memory inside a capture");
}

int FakeDevice::IdOf(Stream s) const {
  int id = static_cast<int>(reinterpret_cast<uintptr_t>(s)) - 1;
  SHARDC_CHECK(streams_.contains(id), "no such stream");
  return id;
}

void FakeDevice::Enqueue(std::string what, Stream s, std::vector<Touch> touches,
                         std::function<void()> run) {
  CheckCurrent();
  int id = IdOf(s);
  ++enqueued;
  SHARDC_CHECK(!capturing_ || captured_streams_.contains(id),
               "work on a stream that has not joined the capture: ", what);
  Clock& clock = clocks_[id];
  std::erase_if(touches, [](const Touch& t) { return t.bytes == 0; });
  if (remember) works_.push_back({std::move(what), s, std::move(touches), clock, clock[id]});
  Pending work{id, clock, std::move(run)};
  ++clock[id];
  if (capturing_) {
    captured_.works.push_back(std::move(work));
    return;
  }
  ++given_;
  if (alongside_) {
    alongside_->Give(std::move(work.run));
  } else if (deferred_) {
    waiting_[id].push_back(std::move(work));
  } else {
    work.run();
  }
}

void FakeDevice::Defer(uint64_t seed) {
  deferred_ = true;
  random_.seed(static_cast<uint_fast32_t>(seed));
  done_of_ = Clock(clocks_.size());
  for (size_t s = 0; s < clocks_.size(); ++s) done_of_[s] = clocks_[s][s];
}

void FakeDevice::DoOne(Queues& queues, Clock& done) {
  std::vector<Queues::iterator> open;
  for (auto it = queues.begin(); it != queues.end(); ++it) {
    const Clock& after = it->second.front().after;
    bool may = true;
    for (size_t s = 0; s < after.size(); ++s) may = may && after[s] <= done[s];
    if (may) open.push_back(it);
  }
  SHARDC_CHECK(!open.empty(), "work that waits for work that nobody gave");
  auto it = open[random_() % open.size()];
  auto run = std::move(it->second.front().run);
  const auto stream = static_cast<size_t>(it->first);
  it->second.pop_front();
  if (it->second.empty()) queues.erase(it);
  run();
  ++done[stream];
}

void FakeDevice::DoAll() {
  while (!waiting_.empty()) DoOne(waiting_, done_of_);
}

void FakeDevice::Launch(const Graph& graph) {
  if (!deferred_) {
    for (const Pending& work : graph.works) work.run();
    return;
  }
  Queues queues;
  for (const Pending& work : graph.works) queues[work.stream].push_back(work);
  Clock done = graph.before;
  while (!queues.empty()) DoOne(queues, done);
}

bool FakeDevice::Before(const Work& a, const Work& b) {
  size_t stream = reinterpret_cast<uintptr_t>(a.stream) - 1;
  return stream < b.clock.size() && a.index < b.clock[stream];
}

std::vector<std::string> FakeDevice::Races() const {
  std::vector<std::string> out;
  for (size_t b = 0; b < works_.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      const Work &x = works_[a], &y = works_[b];
      if (x.stream == y.stream || Before(x, y)) continue;
      for (const Touch& t : x.touches) {
        if (std::none_of(y.touches.begin(), y.touches.end(),
                         [&](const Touch& u) { return Overlap(t, u); })) {
          continue;
        }
        out.push_back(StrCat(x.what, " and ", y.what));
        break;
      }
    }
  }
  return out;
}

std::vector<std::string> FakeDevice::Strays() const {
  std::vector<std::string> out;
  for (const Work& w : works_) {
    for (const Touch& t : w.touches) {
      bool inside = std::any_of(memory_.begin(), memory_.end(), [&](const auto& m) {
        return m.first <= t.begin && t.begin + t.bytes <= m.first + m.second.bytes;
      });
      if (!inside) out.push_back(w.what);
    }
  }
  return out;
}

std::byte* FakeDevice::Allocate(int64_t bytes, const std::string& what) {
  if (fail_allocation_over >= 0 && bytes > fail_allocation_over) {
    throw Diagnostic("E4007", ExitCode::kMemory, what, StrCat("cannot allocate ", bytes));
  }
  ++allocations;
  allocated_bytes += bytes;
  return TakeMemory(bytes, false);
}

std::byte* FakeDevice::AllocateHost(int64_t bytes, const std::string&) {
  return TakeMemory(bytes, true);
}

std::byte* FakeDevice::TakeMemory(int64_t bytes, bool on_host) {
  CheckCurrent();
  SHARDC_CHECK(!capturing_, "allocation inside a capture");
  ++live;
  // Old contents, as on a device: nothing may count on zeros.
  Block block{std::vector<std::byte>(static_cast<size_t>(bytes) + kAlignment, std::byte{0x7b}),
              bytes, on_host};
  const auto at = reinterpret_cast<uintptr_t>(block.memory.data());
  std::byte* p = block.memory.data() + (kAlignment - at % kAlignment) % kAlignment;
  memory_[p] = std::move(block);
  return p;
}

int64_t FakeDevice::UsedBytes() {
  CheckCurrent();
  int64_t bytes = library_bytes;
  for (const auto& [p, block] : memory_) bytes += block.on_host ? 0 : block.bytes;
  return bytes;
}

void FakeDevice::Free(std::byte* p) noexcept {
  SHARDC_CHECK(!capturing_, "memory is freed inside a capture");
  // As cudaFree waits for the device.
  if (alongside_) {
    try {
      alongside_->Wait();
    } catch (...) {
      // Synchronize and Done say it.
    }
  }
  DoAll();
  live -= static_cast<int64_t>(memory_.erase(p));
}

FakeDevice::Stream FakeDevice::MakeStream(bool) {
  ++live;
  int id = streams_made_++;
  streams_.insert(id);
  for (Clock& c : clocks_) c.push_back(0);
  for (auto& [handle, event] : events_) event.clock.resize(static_cast<size_t>(streams_made_));
  clocks_.emplace_back(static_cast<size_t>(streams_made_), 0);
  done_of_.resize(clocks_.size());
  return AsHandle<Stream>(id);
}

void FakeDevice::DestroyStream(Stream s) noexcept {
  live -=
      static_cast<int64_t>(streams_.erase(static_cast<int>(reinterpret_cast<uintptr_t>(s)) - 1));
}

FakeDevice::Event FakeDevice::MakeEvent() {
  CheckCurrent();
  ++live;
  Event e = AsHandle<Event>(events_made_++);
  events_[e].clock = Clock(static_cast<size_t>(streams_made_), 0);
  return e;
}

FakeDevice::Event FakeDevice::MakeTimedEvent() {
  Event e = MakeEvent();
  events_.at(e).timed = true;
  return e;
}

void FakeDevice::DestroyEvent(Event e) noexcept { live -= static_cast<int64_t>(events_.erase(e)); }

void FakeDevice::Record(Event e, Stream s) {
  CheckCurrent();
  int id = IdOf(s);
  ++enqueued;
  SHARDC_CHECK(!capturing_ || captured_streams_.contains(id), "record outside the capture");
  EventState& event = events_.at(e);
  event.clock = clocks_[id];
  event.work = given_;
  event.capture = capturing_ ? captures_ : kNoCapture;
}

double FakeDevice::Milliseconds(Event from, Event to) {
  for (Event e : {from, to}) {
    const EventState& event = events_.at(e);
    SHARDC_CHECK(event.timed, "the time of an event that has none");
    SHARDC_CHECK(event.capture == kNoCapture, "the time of an event that was not recorded");
    SHARDC_CHECK(Reached(event.clock), "the time of an event that is still to come");
  }
  return static_cast<double>(events_.at(to).work - events_.at(from).work);
}

void FakeDevice::Wait(Stream s, Event e) {
  CheckCurrent();
  int id = IdOf(s);
  ++enqueued;
  const EventState& event = events_.at(e);
  SHARDC_CHECK(event.capture != kNotRecorded, "wait for an event that nobody recorded");
  SHARDC_CHECK(event.capture == kNoCapture || (capturing_ && event.capture == captures_),
               "wait for an event of a capture that has ended");
  SHARDC_CHECK(event.capture != kNoCapture || !capturing_ || !captured_streams_.contains(id),
               "a captured stream waits for what is outside the capture");
  Clock& clock = clocks_[id];
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], event.clock[i]);
  if (event.capture != kNoCapture) captured_streams_.insert(id);
}

void FakeDevice::Synchronize(Stream s) {
  CheckCurrent();
  SHARDC_CHECK(!capturing_, "the host waits inside a capture");
  if (alongside_) alongside_->Wait();
  while (!Reached(clocks_[IdOf(s)])) DoOne(waiting_, done_of_);
  HostSaw(IdOf(s));
}

bool FakeDevice::Done(Stream s) {
  CheckCurrent();
  SHARDC_CHECK(!capturing_, "the host asks inside a capture");
  if (hang || (alongside_ && !alongside_->Idle())) return false;
  if (!waiting_.empty()) DoOne(waiting_, done_of_);
  if (!Reached(clocks_[IdOf(s)])) return false;
  HostSaw(IdOf(s));
  return true;
}

bool FakeDevice::Reached(const Clock& given) const {
  if (!deferred_) return true;
  for (size_t s = 0; s < given.size(); ++s) {
    if (done_of_[s] < given[s]) return false;
  }
  return true;
}

void FakeDevice::HostSaw(int stream) {
  const Clock done = clocks_[stream];
  for (Clock& clock : clocks_) {
    for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], done[i]);
  }
}

void FakeDevice::Move(const char* what, std::byte* to, const std::byte* from, int64_t bytes,
                      Stream s) {
  Enqueue(what, s, {{from, bytes, false}, {to, bytes, true}},
          [=] { std::memmove(to, from, static_cast<size_t>(bytes)); });
}

void FakeDevice::CopyIn(std::byte* to, const std::byte* from, int64_t bytes, Stream s) {
  CheckPinned(from);
  Move("copy in", to, from, bytes, s);
}
void FakeDevice::CopyOut(std::byte* to, const std::byte* from, int64_t bytes, Stream s) {
  CheckPinned(to);
  Move("copy out", to, from, bytes, s);
}
void FakeDevice::Copy(std::byte* to, const std::byte* from, int64_t bytes, Stream s) {
  Move("copy", to, from, bytes, s);
}

void FakeDevice::Fill(std::byte* to, int byte, int64_t bytes, Stream s) {
  Enqueue("fill", s, {{to, bytes, true}},
          [=] { std::memset(to, byte, static_cast<size_t>(bytes)); });
}

void FakeDevice::Reduce(const cuda::Reduction& r, Stream s) {
  int64_t bytes = r.count * DTypeSize(r.dtype);
  std::vector<Touch> touches;
  for (const std::byte* p : r.sources) touches.push_back({p, bytes, false});
  for (std::byte* p : r.targets) touches.push_back({p, bytes, true});
  Enqueue("reduce", s, std::move(touches), [r] { cuda::emulated::LaunchReduction({}, r); });
}

cuda::Launch FakeDevice::LaunchOn(Stream s) {
  cuda::Launch launch;
  launch.stream = s;
  return launch;
}

void FakeDevice::BeginCapture(Stream s) {
  CheckCurrent();
  SHARDC_CHECK(!capturing_, "a capture inside a capture");
  if (alongside_) alongside_->Wait();
  DoAll();
  capturing_ = true;
  ++captures_;
  capture_origin_ = IdOf(s);
  capture_thread_ = std::this_thread::get_id();
  captured_streams_ = {capture_origin_};
  captured_ = {{}, Clock(clocks_.size())};
  for (size_t i = 0; i < clocks_.size(); ++i) captured_.before[i] = clocks_[i][i];
}

void FakeDevice::CaptureEnded() {
  capturing_ = false;
  // What was captured is never done by itself.
  for (size_t i = 0; i < clocks_.size(); ++i) done_of_[i] = clocks_[i][i];
}

cuda::StepGraph FakeDevice::EndCapture(Stream s) {
  SHARDC_CHECK(capturing_ && IdOf(s) == capture_origin_, "the end of a capture on another stream");
  SHARDC_CHECK(std::this_thread::get_id() == capture_thread_,
               "the end of another thread's capture");
  CaptureEnded();
  if (refuse_capture) {
    throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "end of a capture: not today");
  }
  // CUDA refuses a capture whose streams have not come back to the first.
  for (int id : captured_streams_) {
    SHARDC_CHECK(clocks_[IdOf(s)][id] == clocks_[id][id], "stream ", id, " has not joined");
  }
  ++live;
  graphs_.push_back(std::make_shared<const Graph>(std::exchange(captured_, {})));
  return AsHandle<cuda::StepGraph>(static_cast<int>(graphs_made++));
}

void FakeDevice::AbandonCapture(Stream) noexcept {
  if (capturing_) CaptureEnded();
  captured_ = {};
}

void FakeDevice::LaunchGraph(cuda::StepGraph g, Stream s) {
  SHARDC_CHECK(!capturing_, "a graph is launched inside a capture");
  const std::shared_ptr<const Graph>& graph = graphs_.at(reinterpret_cast<uintptr_t>(g) - 1);
  SHARDC_CHECK(graph, "a graph that was destroyed");
  ++graphs_launched;
  Enqueue("graph", s, {}, [this, graph] { Launch(*graph); });
}

void FakeDevice::DestroyGraph(cuda::StepGraph g) noexcept {
  // One that runs lives until it is done.
  graphs_[reinterpret_cast<uintptr_t>(g) - 1] = nullptr;
  --live;
}

}  // namespace shardc::testing
