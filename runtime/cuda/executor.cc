#include "runtime/cuda/executor.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "ir/diagnostic.h"
#include "runtime/describe.h"

namespace shardc::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Executor::Executor(Device& device, Carrier& carrier, std::span<const Program* const> programs,
                   const ExecutorOptions& options, const KernelMaker& make_kernel,
                   const StateReader& read_state)
    : device_(device), carrier_(carrier), options_(options) {
  // What the numbers are checked after is one instruction.
  if (options_.check_numerics) options_.epilogues = nullptr;
  std::vector<ProductGroup> groups;
  if (options_.epilogues) groups = FindProductGroups(*programs[0]);
  schedule_ = MakeSchedule(*programs[0], std::move(groups));
  device_.Activate();
  for (const Program* p : programs) {
    SHARDC_CHECK(p->instructions.size() == programs[0]->instructions.size());
    ranks_.push_back(std::make_unique<RankState>(device, carrier, *p, schedule_, make_kernel,
                                                 options_.epilogues));
  }
  TuneKernels();
  for (auto& r : ranks_) r->LoadStates(read_state);
  groups_.resize(schedule_.streams.size());
  for (size_t s = 1; s < groups_.size(); ++s) {
    for (const std::vector<int>& group : programs[0]->mesh.Groups(schedule_.streams[s])) {
      std::vector<size_t> local;
      for (int rank : group) {
        for (size_t i = 0; i < programs.size(); ++i) {
          if (programs[i]->rank == rank) local.push_back(i);
        }
      }
      if (!local.empty()) groups_[s].push_back(std::move(local));
    }
  }
  fork_ = std::make_unique<OwnedEvent>(device);
  for (size_t i = 0; i < ranks_.size() * schedule_.streams.size(); ++i) {
    joins_.push_back(std::make_unique<OwnedEvent>(device));
  }
}

Executor::~Executor() {
  if (graph_) device_.DestroyGraph(graph_);
  carrier_.WaitForAborted();  // before the memory goes
}

// Rank 0 decides for all: what every rank computes for itself must have the same bits on all.
void Executor::TuneKernels() {
  const bool leads = ranks_[0]->program().rank == 0;
  KernelChoices choices;
  if (leads) {
    choices = ReadChoices(options_.choices_path);
    ranks_[0]->TuneKernels(choices);
    if (choices.changed()) WriteChoices(choices, options_.choices_path);
  }
  std::string text = choices.ToText();
  carrier_.Share(text);
  choices = KernelChoices::Parse(text);
  for (size_t i = leads ? 1 : 0; i < ranks_.size(); ++i) ranks_[i]->TuneKernels(choices);
}

void Executor::Step() {
  const Clock::time_point start = Clock::now();
  const double waited = waited_;
  device_.Activate();
  for (auto& r : ranks_) r->UploadInputs(origin());
  bool timed = false;
  for (auto& r : ranks_) timed = r->timer().BeginStep(origin()) || timed;
  // The first step runs as it is: libraries load code and choose algorithms in it, which a capture
  // cannot hold.
  bool capture = options_.capture && !options_.check_numerics && capture_failure_.empty();
  if (capture && !timed && !graph_ && steps_ > 0) Capture();
  if (graph_ && !timed) {
    device_.LaunchGraph(graph_, origin());
  } else {
    EnqueueStep();
  }
  WaitForStep();
  for (auto& r : ranks_) r->timer().EndStep();
  for (auto& r : ranks_) r->CheckFault();
  for (auto& r : ranks_) r->StepEnded();
  ++steps_;
  host_seconds_ = SecondsSince(start) - (waited_ - waited);
}

void Executor::Capture() {
  device_.BeginCapture(origin());
  try {
    EnqueueStep();
    graph_ = device_.EndCapture(origin());
  } catch (const Diagnostic& d) {
    device_.AbandonCapture(origin());
    capture_failure_ = d.message();
    std::fprintf(stderr, "note: steps run without a CUDA graph, instruction by instruction: %s\n",
                 capture_failure_.c_str());
  } catch (...) {
    device_.AbandonCapture(origin());
    throw;
  }
}

void Executor::EnqueueStep() {
  for (auto& r : ranks_) r->ClearFault(origin());
  Fork();
  for (size_t i = 0; i < schedule_.items.size(); ++i) EnqueueItem(static_cast<int>(i));
  Join();
  for (auto& r : ranks_) r->ReadFault(origin());
}

void Executor::Fork() {
  device_.Record(fork_->get(), origin());
  for (auto& r : ranks_) {
    for (size_t s = 0; s < schedule_.streams.size(); ++s) {
      Stream stream = r->stream(static_cast<int>(s));
      if (stream != origin()) device_.Wait(stream, fork_->get());
    }
  }
}

void Executor::Join() {
  for (size_t i = 0; i < joins_.size(); ++i) {
    size_t streams = schedule_.streams.size();
    Stream stream = ranks_[i / streams]->stream(static_cast<int>(i % streams));
    if (stream == origin()) continue;
    device_.Record(joins_[i]->get(), stream);
    device_.Wait(origin(), joins_[i]->get());
  }
}

void Executor::EnqueueItem(int item) {
  const Schedule::Item& i = schedule_.items[item];
  for (auto& r : ranks_) r->Before(item);
  if (i.stream == 0) {
    for (int instruction : i.runs) EnqueueKernels(instruction);
  } else {
    for (auto& r : ranks_) r->timer().Begin(i.instruction, r->stream(i.stream));
    EnqueueCollective(item);
    for (auto& r : ranks_) r->timer().End(i.instruction, r->stream(i.stream));
  }
  for (auto& r : ranks_) r->After(item);
  if (options_.check_numerics) CheckNumerics(i.instruction);
}

void Executor::EnqueueKernels(int instruction) {
  for (auto& r : ranks_) r->timer().Begin(instruction, r->stream(0));
  for (auto& r : ranks_) r->EnqueueKernel(instruction);
  for (auto& r : ranks_) r->timer().End(instruction, r->stream(0));
}

void Executor::EnqueueCollective(int item) {
  const Schedule::Item& i = schedule_.items[item];
  const Program& program = ranks_[0]->program();
  const Collective& c = program.collectives[program.instructions[i.instruction].collective];
  for (const std::vector<size_t>& group : groups_[i.stream]) {
    std::vector<Member> members;
    for (size_t local : group) members.push_back(ranks_[local]->MemberOf(i.instruction, i.stream));
    try {
      carrier_.Enqueue(c, members);
    } catch (const Diagnostic& d) {
      throw d.In(
          DescribeInstruction(ranks_[group[0]]->program(), static_cast<size_t>(i.instruction)));
    }
  }
}

void Executor::CheckNumerics(int instruction) {
  Join();
  WaitForStep();
  for (size_t local = 0; local < ranks_.size(); ++local) {
    const Program& p = ranks_[local]->program();
    for (int r : p.instructions[instruction].results) {
      const Buffer& b = p.buffers[r];
      if (!IsFloat(b.type.dtype)) continue;
      int64_t at = FindNan(Fetch(local, r), b.type.dtype, NumElements(b.local_shape));
      if (at >= 0) ThrowNan(p, static_cast<size_t>(instruction), r, at);
    }
  }
}

void Executor::WaitForStep() {
  const Clock::time_point start = Clock::now();
  if (carrier_.can_fail_later()) {
    PollStep();
  } else {
    device_.Synchronize(origin());
  }
  waited_ += SecondsSince(start);
}

void Executor::PollStep() {
  // A collective whose peer is gone never ends: look at both.
  Clock::time_point start = Clock::now();
  while (!device_.Done(origin())) {
    carrier_.Check();
    if (Clock::now() - start < std::chrono::milliseconds(1)) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

const std::byte* Executor::Fetch(size_t local, int buffer) {
  device_.Activate();
  int64_t bytes = ranks_[local]->program().buffers[buffer].bytes;
  if (bytes > fetched_.bytes()) {
    fetched_ = Memory();
    fetched_ = Memory(device_, bytes, "to read results", true);
  }
  if (bytes > 0) {
    device_.CopyOut(fetched_.data(), ranks_[local]->memory(buffer), bytes, origin());
    device_.Synchronize(origin());
  }
  return fetched_.data();
}

void Executor::StartProfile(int64_t steps) {
  device_.Activate();
  for (auto& r : ranks_) r->timer().Start(steps);
}

std::vector<std::vector<TimeSpan>> Executor::TakeProfile() {
  std::vector<std::vector<TimeSpan>> spans;
  for (auto& r : ranks_) spans.push_back(r->timer().Take());
  return spans;
}

int64_t Executor::held_bytes() const {
  int64_t n = 0;
  for (const auto& r : ranks_) n += r->held_bytes();
  return n;
}

}  // namespace shardc::cuda
