#include "runtime/cuda/executor.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>
#include <utility>

#include "ir/diagnostic.h"
#include "runtime/describe.h"
#include "runtime/groups.h"

namespace shardc::cuda {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Executor::Executor(Device& device, Carrier& carrier, std::span<const Program* const> programs,
                   std::vector<int> stage_axes, const ExecutorOptions& options,
                   const KernelMaker& make_kernel, const StateReader& read_state)
    : device_(device), carrier_(carrier), options_(options), stage_axes_(std::move(stage_axes)) {
  // What the numbers are checked after is one instruction.
  if (options_.check_numerics) {
    options_.epilogues = nullptr;
    options_.make_joined = nullptr;
  }
  device_.Activate();
  options_.capture = carrier_.All(options_.capture && !options_.check_numerics);
  MakeStages(programs, make_kernel);
  TuneKernels();
  // A kernel's code is loaded by its first launch, which may wait until the GPU is idle, or another
  // GPU of the process. It must not wait for a collective, which waits for other ranks.
  if (carrier_.can_fail_later()) {
    for (auto& r : ranks_) r->LaunchKernelsOnce();
  }
  for (auto& r : ranks_) r->LoadStates(read_state);
  fork_ = std::make_unique<OwnedEvent>(device);
  for (const auto& stage : stages_) {
    for (size_t r : stage->ranks) {
      for (size_t s = 0; s < stage->schedule.streams.size(); ++s) {
        const Stream stream = ranks_[r]->stream(static_cast<int>(s));
        if (stream != origin()) joins_.push_back({stream, std::make_unique<OwnedEvent>(device)});
      }
    }
  }
}

void Executor::MakeStages(std::span<const Program* const> programs,
                          const KernelMaker& make_kernel) {
  std::map<int64_t, Stage*> by_place;
  for (size_t r = 0; r < programs.size(); ++r) {
    const Program& p = *programs[r];
    Stage*& stage = by_place[p.mesh.GroupIndex(p.rank, stage_axes_)];
    if (!stage) {
      stage = stages_.emplace_back(std::make_unique<Stage>()).get();
      std::vector<ProductGroup> groups;
      if (options_.epilogues) groups = FindProductGroups(p);
      stage->schedule =
          MakeSchedule(p, std::move(groups), kLookahead, options_.make_joined != nullptr);
    }
    SHARDC_CHECK(stage->ranks.empty() ||
                 p.instructions.size() == programs[stage->ranks[0]]->instructions.size());
    stage->ranks.push_back(r);
    ranks_.push_back(std::make_unique<RankState>(device_, carrier_, p, stage->schedule, make_kernel,
                                                 options_.make_joined, options_.epilogues));
  }
  for (auto& stage : stages_) MakeGroups(*stage);
}

void Executor::MakeGroups(Stage& stage) {
  const Mesh& mesh = ranks_[stage.ranks[0]]->program().mesh;
  stage.groups.resize(stage.schedule.streams.size());
  for (size_t s = 1; s < stage.groups.size(); ++s) {
    for (const std::vector<int>& group : mesh.Groups(stage.schedule.streams[s])) {
      std::vector<size_t> local;
      for (int rank : group) {
        for (size_t i : stage.ranks) {
          if (ranks_[i]->program().rank == rank) local.push_back(i);
        }
      }
      if (!local.empty()) stage.groups[s].push_back(std::move(local));
    }
  }
}

Executor::~Executor() {
  if (graph_) device_.DestroyGraph(graph_);
  // Before the memory goes, which not every way to free it waits for: what a step that failed has
  // left running.
  carrier_.WaitForAborted();
  try {
    device_.Synchronize(origin());
    for (const OwnStream& j : joins_) device_.Synchronize(j.stream);
  } catch (const Diagnostic&) {
    // Then nothing runs any more.
  }
}

// Of each stage the first rank decides for all its ranks: what several of them compute for
// themselves must have the same bits on all. Rank 0 reads and writes what is kept.
void Executor::TuneKernels() {
  const bool keeps = ranks_[0]->program().rank == 0;
  KernelChoices choices;
  if (keeps) choices = ReadChoices(options_.choices_path);
  const std::string kept = choices.ToText();
  std::vector<bool> tuned(ranks_.size());
  for (int leader : FirstRanksOfStages()) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i]->program().rank != leader) continue;
      ranks_[i]->TuneKernels(choices);
      tuned[i] = true;
    }
    std::string text = (choices.may_measure ? "1" : "0") + choices.ToText();
    carrier_.Share(text, leader);
    choices = KernelChoices::Parse(std::string_view(text).substr(1));
    choices.may_measure = text[0] == '1';
  }
  if (keeps && choices.ToText() != kept) WriteChoices(choices, options_.choices_path);
  choices.may_measure = false;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!tuned[i]) ranks_[i]->TuneKernels(choices);
  }
}

std::vector<int> Executor::FirstRanksOfStages() const {
  const Mesh& mesh = ranks_[0]->program().mesh;
  std::vector<int> first;
  for (int64_t r = 0; r < mesh.num_ranks(); ++r) {
    if (mesh.GroupIndex(r, stage_axes_) == static_cast<int64_t>(first.size())) {
      first.push_back(static_cast<int>(r));
    }
  }
  return first;
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
  const bool capture = options_.capture && capture_failure_.empty();
  if (capture && !timed && !graph_ && steps_ > 0) Capture();
  for (auto& r : ranks_) r->ClearFaults();
  if (graph_ && !timed) {
    device_.LaunchGraph(graph_, origin());
  } else {
    EnqueueStep();
  }
  WaitForStep();
  for (auto& r : ranks_) r->timer().EndStep();
  for (auto& r : ranks_) r->CheckFaults();
  ++steps_;
  host_seconds_ = SecondsSince(start) - (waited_ - waited);
}

void Executor::Capture() {
  device_.BeginCapture(origin());
  bool complete = false;
  try {
    EnqueueStep();
    complete = true;
    graph_ = device_.EndCapture(origin());
  } catch (const Diagnostic& d) {
    device_.AbandonCapture(origin());
    // Ranks on other GPUs may be waiting, in a collective's preparation, for what does not come.
    if (!complete && carrier_.can_fail_later()) {
      throw Diagnostic(d.id(), d.code(), d.where(),
                       "while a step was captured as a CUDA graph: " + d.message(),
                       "set SHARDC_NO_CUDA_GRAPH to run steps without a graph");
    }
    capture_failure_ = d.message();
    std::fprintf(stderr, "note: steps run without a CUDA graph, instruction by instruction: %s\n",
                 capture_failure_.c_str());
  } catch (...) {
    device_.AbandonCapture(origin());
    throw;
  }
  // A collective is captured by all its ranks or by none.
  if (carrier_.All(graph_ != nullptr) || !graph_) return;
  device_.DestroyGraph(std::exchange(graph_, nullptr));
  capture_failure_ = "the step of another rank could not be captured";
}

void Executor::EnqueueStep() {
  Fork();
  for (auto& stage : stages_) stage->next = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (auto& stage : stages_) moved = Advance(*stage) || moved;
  }
  for (auto& stage : stages_) {
    SHARDC_CHECK(stage->next == stage->schedule.items.size(), "stages wait for each other");
  }
  Join();
}

void Executor::Fork() {
  device_.Record(fork_->get(), origin());
  for (const OwnStream& j : joins_) device_.Wait(j.stream, fork_->get());
}

void Executor::Join() {
  for (const OwnStream& j : joins_) {
    device_.Record(j.end->get(), j.stream);
    device_.Wait(origin(), j.end->get());
  }
}

// Of the item; or null.
const Collective* Executor::CollectiveOf(const Stage& stage, size_t item) const {
  if (item >= stage.schedule.items.size()) return nullptr;
  const Program& p = ranks_[stage.ranks[0]]->program();
  const int c = p.instructions[stage.schedule.items[item].instruction].collective;
  return c < 0 ? nullptr : &p.collectives[c];
}

// Enqueues the stage's items up to a transfer whose other end, which this thread drives too, is not
// there yet. Whether there were any.
bool Executor::Advance(Stage& stage) {
  const size_t begin = stage.next;
  while (stage.next < stage.schedule.items.size()) {
    const Collective* c = CollectiveOf(stage, stage.next);
    if (c && c->kind == CollectiveKind::kSendRecv && stages_.size() > 1) {
      Stage* other = OtherEnd(stage, *c);
      if (!other) break;
      const bool sends = Sends(ranks_[stage.ranks[0]]->program(), *c);
      EnqueueTransfer(sends ? stage : *other, sends ? *other : stage);
      ++other->next;
    } else {
      EnqueueItem(stage, static_cast<int>(stage.next));
    }
    ++stage.next;
  }
  return stage.next > begin;
}

// The stage that stands at the same transfer; or null.
Executor::Stage* Executor::OtherEnd(const Stage& stage, const Collective& c) {
  for (auto& other : stages_) {
    const Collective* d = other.get() == &stage ? nullptr : CollectiveOf(*other, other->next);
    const bool same = d && d->kind == CollectiveKind::kSendRecv && d->id == c.id &&
                      d->axes == c.axes && d->from == c.from && d->to == c.to;
    if (same) return other.get();
  }
  return nullptr;
}

void Executor::EnqueueTransfer(Stage& from, Stage& to) {
  const Collective& c = *CollectiveOf(from, from.next);
  Stage* const ends[] = {&from, &to};
  for (Stage* stage : ends) {
    const Schedule::Item& i = stage->schedule.items[stage->next];
    for (size_t r : stage->ranks) {
      ranks_[r]->Before(static_cast<int>(stage->next));
      ranks_[r]->timer().Begin(i.instruction, ranks_[r]->stream(i.stream));
    }
  }
  for (size_t sender : from.ranks) {
    const Program& p = ranks_[sender]->program();
    const int peer = p.mesh.Group(p.rank, c.axes)[c.to];
    std::vector<Member> members;
    for (Stage* stage : ends) {
      const Schedule::Item& i = stage->schedule.items[stage->next];
      for (size_t r : stage->ranks) {
        if (stage == &from ? r != sender : ranks_[r]->program().rank != peer) continue;
        members.push_back(ranks_[r]->MemberOf(i.instruction, i.stream));
      }
    }
    Enqueue(from, from.schedule.items[from.next].instruction, c, members);
  }
  for (Stage* stage : ends) {
    const Schedule::Item& i = stage->schedule.items[stage->next];
    for (size_t r : stage->ranks) {
      ranks_[r]->timer().End(i.instruction, ranks_[r]->stream(i.stream));
      ranks_[r]->After(static_cast<int>(stage->next));
    }
    if (options_.check_numerics) CheckNumerics(*stage, i.instruction);
  }
}

void Executor::EnqueueItem(Stage& stage, int item) {
  const Schedule::Item& i = stage.schedule.items[item];
  for (size_t r : stage.ranks) ranks_[r]->Before(item);
  if (i.stream == 0) {
    for (int instruction : i.runs) EnqueueKernels(stage, instruction);
  } else {
    for (size_t r : stage.ranks) {
      ranks_[r]->timer().Begin(i.instruction, ranks_[r]->stream(i.stream));
    }
    EnqueueCollective(stage, item);
    for (size_t r : stage.ranks) ranks_[r]->timer().End(i.instruction, ranks_[r]->stream(i.stream));
  }
  for (size_t r : stage.ranks) ranks_[r]->After(item);
  if (options_.check_numerics) CheckNumerics(stage, i.instruction);
}

void Executor::EnqueueKernels(const Stage& stage, int instruction) {
  for (size_t r : stage.ranks) ranks_[r]->timer().Begin(instruction, ranks_[r]->stream(0));
  for (size_t r : stage.ranks) ranks_[r]->EnqueueKernel(instruction);
  for (size_t r : stage.ranks) ranks_[r]->timer().End(instruction, ranks_[r]->stream(0));
}

void Executor::EnqueueCollective(const Stage& stage, int item) {
  const Schedule::Item& i = stage.schedule.items[item];
  const Collective& c = *CollectiveOf(stage, static_cast<size_t>(item));
  for (const std::vector<size_t>& group : stage.groups[i.stream]) {
    std::vector<Member> members;
    for (size_t local : group) members.push_back(ranks_[local]->MemberOf(i.instruction, i.stream));
    Enqueue(stage, i.instruction, c, members);
  }
}

void Executor::Enqueue(const Stage& stage, int instruction, const Collective& c,
                       std::span<const Member> members) {
  try {
    carrier_.Enqueue(c, members);
  } catch (const Diagnostic& d) {
    for (size_t r : stage.ranks) {
      const Program& p = ranks_[r]->program();
      if (p.rank != members[0].rank) continue;
      throw d.In(DescribeInstruction(p, static_cast<size_t>(instruction)));
    }
    throw;
  }
}

void Executor::CheckNumerics(const Stage& stage, int instruction) {
  Join();
  WaitForStep();
  for (size_t local : stage.ranks) {
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

int64_t Executor::workspace_bytes() const {
  int64_t n = 0;
  for (const auto& r : ranks_) n += r->workspace_bytes();
  return n;
}

int64_t Executor::held_bytes() const {
  int64_t n = 0;
  for (const auto& r : ranks_) n += r->held_bytes();
  return n;
}

}  // namespace shardc::cuda
