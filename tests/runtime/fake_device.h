// A Device without a GPU: its memory is host memory, and it writes down everything that was
// enqueued, so that a test can prove what orders what. It does at once what it is told, or, after
// Defer, as late as it may and in any order that streams and events leave open. What CUDA refuses
// or leaves undefined, above all inside a capture, is an InternalError.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cuda/device.h"
#include "tests/runtime/work_thread.h"

namespace shardc::testing {

class FakeDevice : public cuda::Device {
 public:
  using Stream = cuda::Stream;
  using Event = cuda::Event;

  // A stretch of memory that a piece of work reads or writes.
  struct Touch {
    const std::byte* begin = nullptr;
    int64_t bytes = 0;
    bool write = false;
  };
  // Something enqueued: a kernel, a copy, a fill, a reduction. Records and waits are not work: they
  // only order it.
  struct Work {
    std::string what;
    Stream stream = nullptr;
    std::vector<Touch> touches;
    std::vector<int> clock;  // by stream: how many works of it are done before this one begins
    int index = 0;           // in its stream
  };

  FakeDevice() { Activate(); }
  ~FakeDevice() override;
  // That of this thread; or null.
  static FakeDevice* Current();

  // For kernels that a test makes: adds work to what was enqueued, as a launch does. `run` is
  // called now or when it is its turn; in a capture whenever the graph is launched.
  void Enqueue(std::string what, Stream s, std::vector<Touch> touches, std::function<void()> run);
  const std::vector<Work>& works() const { return works_; }
  void Forget() { works_.clear(); }
  // Whether `a` is done before `b` begins, by streams and events alone.
  static bool Before(const Work& a, const Work& b);
  // Pairs of works that touch the same byte, one writing, with neither before the other; each as a
  // sentence.
  std::vector<std::string> Races() const;
  // What of the touches lies outside of every allocation.
  std::vector<std::string> Strays() const;

  int64_t allocations = 0, allocated_bytes = 0,
          live = 0;      // of device memory; live: everything not yet given back
  int64_t enqueued = 0;  // works, records and waits
  int64_t graphs_made = 0, graphs_launched = 0;
  int64_t fail_allocation_over = -1;  // bytes; -1: never
  int64_t library_bytes = 0;          // that others than the device's users have taken
  bool refuse_capture = false;
  bool hang = false;     // Done stays false
  bool remember = true;  // what was enqueued; not for runs without end
  // From now on work waits until the host waits for it; then it is done in an order drawn by
  // `seed`, and what need not be done stays behind. A lacking event or wait shows as a wrong
  // result.
  void Defer(uint64_t seed);
  // From now on a thread does the work, in the order in which it was given.
  void RunAlongside() { alongside_ = std::make_unique<WorkThread>(); }
  bool Captures(Stream s) const { return capturing_ && captured_streams_.contains(IdOf(s)); }

  void Activate() override;
  std::byte* Allocate(int64_t bytes, const std::string& what) override;
  void Free(std::byte* p) noexcept override;
  int64_t UsedBytes() override;
  std::byte* AllocateHost(int64_t bytes, const std::string& what) override;
  void FreeHost(std::byte* p) noexcept override { Free(p); }
  Stream MakeStream(bool urgent) override;
  void DestroyStream(Stream s) noexcept override;
  Event MakeEvent() override;
  Event MakeTimedEvent() override;
  // Every work takes a millisecond of a clock that all streams share.
  double Milliseconds(Event from, Event to) override;
  void DestroyEvent(Event e) noexcept override;
  void Record(Event e, Stream s) override;
  void Wait(Stream s, Event e) override;
  bool Done(Stream s) override;
  void Synchronize(Stream s) override;
  void CopyIn(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override;
  void CopyOut(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override;
  void Copy(std::byte* to, const std::byte* from, int64_t bytes, Stream s) override;
  void Fill(std::byte* to, int byte, int64_t bytes, Stream s) override;
  void Reduce(const cuda::Reduction& r, Stream s) override;
  cuda::Launch LaunchOn(Stream s) override;
  void BeginCapture(Stream s) override;
  cuda::StepGraph EndCapture(Stream s) override;
  void AbandonCapture(Stream s) noexcept override;
  void LaunchGraph(cuda::StepGraph g, Stream s) override;
  void DestroyGraph(cuda::StepGraph g) noexcept override;

 private:
  using Clock = std::vector<int>;
  // Work of a stream that is begun when of each stream so many works are done.
  struct Pending {
    int stream = 0;
    Clock after;
    std::function<void()> run;
  };
  using Queues = std::map<int, std::deque<Pending>>;  // by stream
  struct Graph {
    std::vector<Pending> works;  // in the order in which they were enqueued
    Clock before;                // works of each stream before those of the graph
  };
  struct EventState {
    Clock clock;                 // what it stands for
    int64_t work = 0;            // works given before it
    int capture = kNotRecorded;  // in which it was recorded
    bool timed = false;
  };
  static constexpr int kNotRecorded = -1, kNoCapture = 0;

  int IdOf(Stream s) const;
  // Throws unless it is the device of this thread.
  void CheckCurrent() const;
  // Of copies between host and device in a capture: pageable memory would be read or written at
  // another time.
  void CheckPinned(const std::byte* host) const;
  std::byte* TakeMemory(int64_t bytes, bool on_host);
  // Does one work, drawn from those that may be next. `done` counts the works of each stream.
  void DoOne(Queues& queues, Clock& done);
  void DoAll();
  void Launch(const Graph& graph);
  void CaptureEnded();
  bool Reached(const Clock& given) const;
  // What is enqueued from now on follows what the stream was given so far, for all is done.
  void HostSaw(int stream);
  void Move(const char* what, std::byte* to, const std::byte* from, int64_t bytes, Stream s);

  struct Block {
    std::vector<std::byte> memory;  // with room to align in
    int64_t bytes = 0;
    bool on_host = false;
  };
  std::map<const std::byte*, Block> memory_;
  int streams_made_ = 0, events_made_ = 0;
  std::set<int> streams_;
  std::vector<Clock> clocks_;  // by stream: what its next work follows
  std::map<Event, EventState> events_;
  int64_t given_ = 0;  // works
  std::vector<Work> works_;
  bool capturing_ = false;
  int captures_ = 0;  // begun
  int capture_origin_ = 0;
  std::thread::id capture_thread_;
  std::set<int> captured_streams_;  // that have joined the capture
  Graph captured_;
  std::vector<std::shared_ptr<const Graph>> graphs_;  // null: destroyed
  bool deferred_ = false;
  std::minstd_rand random_;
  Queues waiting_;
  Clock done_of_;  // by stream, when deferred
  std::unique_ptr<WorkThread> alongside_;
};

}  // namespace shardc::testing
