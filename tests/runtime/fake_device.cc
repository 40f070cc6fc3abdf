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

}  // namespace

FakeDevice::~FakeDevice() = default;

int FakeDevice::IdOf(Stream s) const {
  int id = static_cast<int>(reinterpret_cast<uintptr_t>(s)) - 1;
  SHARDC_CHECK(streams_.contains(id), "no such stream");
  return id;
}

void FakeDevice::Enqueue(std::string what, Stream s, std::vector<Touch> touches,
                         std::function<void()> run) {
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
  if (deferred_) {
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
  return AllocateHost(bytes, what);
}

std::byte* FakeDevice::AllocateHost(int64_t bytes, const std::string&) {
  SHARDC_CHECK(!capturing_, "allocation inside a capture");
  ++live;
  // Old contents, as on a device: nothing may count on zeros.
  Block block{std::vector<std::byte>(static_cast<size_t>(bytes) + kAlignment, std::byte{0x7b}),
              bytes};
  const auto at = reinterpret_cast<uintptr_t>(block.memory.data());
  std::byte* p = block.memory.data() + (kAlignment - at % kAlignment) % kAlignment;
  memory_[p] = std::move(block);
  return p;
}

void FakeDevice::Free(std::byte* p) noexcept {
  if (!capturing_) DoAll();  // as cudaFree waits for the device
  live -= static_cast<int64_t>(memory_.erase(p));
}

FakeDevice::Stream FakeDevice::MakeStream(bool) {
  ++live;
  int id = streams_made_++;
  streams_.insert(id);
  for (Clock& c : clocks_) c.push_back(0);
  for (auto& [event, clock] : events_) clock.resize(static_cast<size_t>(streams_made_));
  clocks_.emplace_back(static_cast<size_t>(streams_made_), 0);
  done_of_.resize(clocks_.size());
  return AsHandle<Stream>(id);
}

void FakeDevice::DestroyStream(Stream s) noexcept {
  live -=
      static_cast<int64_t>(streams_.erase(static_cast<int>(reinterpret_cast<uintptr_t>(s)) - 1));
}

FakeDevice::Event FakeDevice::MakeEvent() {
  ++live;
  Event e = AsHandle<Event>(events_made_++);
  events_[e] = Clock(static_cast<size_t>(streams_made_), 0);
  return e;
}

void FakeDevice::DestroyEvent(Event e) noexcept { live -= static_cast<int64_t>(events_.erase(e)); }

void FakeDevice::Record(Event e, Stream s) {
  int id = IdOf(s);
  ++enqueued;
  SHARDC_CHECK(!capturing_ || captured_streams_.contains(id), "record outside the capture");
  events_.at(e) = clocks_[id];
  times_[e] = given_;
}

double FakeDevice::Milliseconds(Event from, Event to) {
  SHARDC_CHECK(times_.contains(from) && times_.contains(to), "an event that was not recorded");
  return static_cast<double>(times_[to] - times_[from]);
}

void FakeDevice::Wait(Stream s, Event e) {
  int id = IdOf(s);
  ++enqueued;
  Clock& clock = clocks_[id];
  const Clock& other = events_.at(e);
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other[i]);
  if (capturing_) captured_streams_.insert(id);
}

void FakeDevice::Synchronize(Stream s) {
  SHARDC_CHECK(!capturing_, "the host waits inside a capture");
  while (!Reached(IdOf(s))) DoOne(waiting_, done_of_);
  HostSaw(IdOf(s));
}

bool FakeDevice::Done(Stream s) {
  if (hang) return false;
  if (!waiting_.empty()) DoOne(waiting_, done_of_);
  if (!Reached(IdOf(s))) return false;
  HostSaw(IdOf(s));
  return true;
}

bool FakeDevice::Reached(int stream) const {
  if (!deferred_) return true;
  const Clock& given = clocks_[stream];
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
  Move("copy in", to, from, bytes, s);
}
void FakeDevice::CopyOut(std::byte* to, const std::byte* from, int64_t bytes, Stream s) {
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
  DoAll();
  capturing_ = true;
  captured_streams_ = {IdOf(s)};
  captured_ = {{}, Clock(clocks_.size())};
  for (size_t i = 0; i < clocks_.size(); ++i) captured_.before[i] = clocks_[i][i];
}

void FakeDevice::CaptureEnded() {
  capturing_ = false;
  // What was captured is never done by itself.
  for (size_t i = 0; i < clocks_.size(); ++i) done_of_[i] = clocks_[i][i];
}

cuda::StepGraph FakeDevice::EndCapture(Stream s) {
  CaptureEnded();
  if (refuse_capture) {
    throw Diagnostic("E4301", ExitCode::kIo, "CUDA", "end of a capture: not today");
  }
  // CUDA refuses a capture whose streams have not come back to the first.
  for (int id : captured_streams_) {
    SHARDC_CHECK(clocks_[IdOf(s)][id] == clocks_[id][id], "stream ", id, " has not joined");
  }
  ++live;
  graphs_.push_back(std::move(captured_));
  return AsHandle<cuda::StepGraph>(static_cast<int>(graphs_made++));
}

void FakeDevice::AbandonCapture(Stream) noexcept { CaptureEnded(); }

void FakeDevice::LaunchGraph(cuda::StepGraph g, Stream s) {
  ++graphs_launched;
  size_t id = reinterpret_cast<uintptr_t>(g) - 1;
  Enqueue("graph", s, {}, [this, id] { Launch(graphs_.at(id)); });
}

void FakeDevice::DestroyGraph(cuda::StepGraph) noexcept { --live; }

}  // namespace shardc::testing
