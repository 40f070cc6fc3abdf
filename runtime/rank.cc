#include "runtime/rank.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <system_error>

#include "ir/diagnostic.h"
#include "ir/no_memory.h"
#include "ir/op_def.h"
#include "runtime/accesses.h"
#include "runtime/cpu/kernels/peaks.h"
#include "runtime/cpu/kernels/team_memory.h"
#include "runtime/cpu/kernels/team_size.h"
#include "runtime/describe.h"
#include "runtime/groups.h"
#include "runtime/name_input.h"
#include "runtime/rank_memory.h"

namespace shardc {

void AlignedMemory::Unmap::operator()(std::byte* p) const { munmap(p, static_cast<size_t>(bytes)); }

AlignedMemory::AlignedMemory(int64_t bytes, const std::string& what) : bytes_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw Diagnostic("E4007", ExitCode::kMemory, what, StrCat("cannot allocate ", bytes, " bytes"),
                     "run fewer ranks on this machine, or a smaller batch");
  }
  // Large arenas are read and written all over: big pages save time in the TLB.
  if (bytes >= (4 << 20)) madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  data_ = {static_cast<std::byte*>(p), Unmap{bytes}};
}

namespace {

// Neither OMP_DYNAMIC nor OMP_THREAD_LIMIT may make teams smaller than what kernels are made for.
int TeamSize(int threads) {
  omp_set_dynamic(0);
  return cpu::GrantedThreads(threads);
}

}  // namespace

Rank::Rank(const Program& program, const SessionOptions& options, int threads,
           std::unique_ptr<Communicator> world, const std::vector<std::vector<int>>& groups,
           const StateReader& read_state)
    : program_(program), options_(options), threads_(TeamSize(threads)), world_(std::move(world)) {
  try {
    cpu::MakeTeam(threads_);
  } catch (const std::system_error& e) {
    throw Diagnostic("E4007", ExitCode::kMemory, StrCat("rank ", program.rank),
                     StrCat("cannot start its ", threads_, " threads: ", e.code().message()),
                     "run fewer ranks on this machine, or with fewer --threads");
  }
  AllocateBuffers(read_state);
  PrepareCommunicators(groups);
  PrepareInstructions();
}

void Rank::AllocateBuffers(const StateReader& read_state) {
  std::string who = StrCat("rank ", program_.rank);
  arena_ = AlignedMemory(program_.arena_bytes, who + ", arena");
  RankMemory memory;
  memory.arena = arena_.data();
  memory.constants = const_cast<std::byte*>(program_.constants.data());
  // Several buffers may name the same state or input.
  auto place = [&](const NamedBuffer& entry, bool state) {
    const Buffer& b = program_.buffers[entry.buffer];
    owned_.emplace_back(b.bytes, who + ", " + entry.name);
    memory.named[{b.space, b.name}] = owned_.back().data();
    if (state) read_state(program_.rank, entry, b, owned_.back().data());
  };
  for (const NamedBuffer& s : program_.states) place(s, true);
  for (const NamedBuffer& i : program_.inputs) place(i, false);
  addresses_ = AddressesOf(program_, memory);
}

void Rank::PrepareCommunicators(const std::vector<std::vector<int>>& groups) {
  for (const std::vector<int>& axes : groups) {
    int color = program_.mesh.Group(program_.rank, axes).front();
    int key = static_cast<int>(program_.mesh.GroupIndex(program_.rank, axes));
    groups_[axes] = world_->Split(color, key);
  }
}

TensorView Rank::View(int buffer) const {
  return ViewOf(program_.buffers[buffer], addresses_[buffer]);
}

void Rank::PrepareInstructions() {
  steps_.resize(program_.instructions.size());
  const bool states_change = ChangesStates(program_);
  sends_to_finish_ = SendsToFinish(program_);
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (instruction.collective >= 0) {
      steps_[i].kernel = PrepareCollective(i);
      continue;
    }
    Step_& step = steps_[i];
    for (int b : instruction.operands) step.in.push_back(View(b));
    for (int b : instruction.results) step.out.push_back(View(b));
    KernelRequest request{
        program_, instruction,
        KernelCall{&instruction.attrs, step.in, step.out, &program_.mesh, program_.rank, threads_},
        states_change};
    try {
      if (!options_.reference_kernels) step.kernel = MakeCpuKernel(request);
      if (!step.kernel) step.kernel = MakeReferenceKernel(request);
    } catch (const Diagnostic& d) {
      throw d.In(DescribeInstruction(program_, i));
    } catch (const std::exception& e) {
      if (!IsNoMemory(e)) throw;
      throw NoMemory(DescribeInstruction(program_, i));
    }
  }
}

std::unique_ptr<Kernel> Rank::PrepareCollective(size_t at) {
  const Instruction& instruction = program_.instructions[at];
  const Collective& c = program_.collectives[instruction.collective];
  Communicator* group = groups_.at(c.axes).get();
  if (c.kind == CollectiveKind::kSendRecv) return PrepareTransfer(at, group);
  const std::vector<Buffers> buffers = BuffersOf(program_, instruction, addresses_);
  ReduceOp op = c.max ? ReduceOp::kMax : ReduceOp::kSum;
  switch (c.kind) {
    case CollectiveKind::kAllReduce:
      return MakeKernel([=] { group->AllReduce(buffers, op); });
    case CollectiveKind::kAllGather:
      return MakeKernel([=] { group->AllGather(buffers); });
    case CollectiveKind::kReduceScatter:
      return MakeKernel([=] { group->ReduceScatter(buffers, op); });
    case CollectiveKind::kAllToAll:
      return MakeKernel([=] { group->AllToAll(buffers); });
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kSendRecv:
      break;
  }
  throw InternalError(StrCat("no in-process form of ", CollectiveKindName(c.kind)));
}

std::unique_ptr<Kernel> Rank::PrepareTransfer(size_t at, Communicator* group) {
  const Instruction& instruction = program_.instructions[at];
  const Collective& c = program_.collectives[instruction.collective];
  const bool sends = Sends(program_, c);
  std::vector<Transfer> transfers;
  for (const Buffers& b : BuffersOf(program_, instruction, addresses_)) {
    transfers.push_back({sends ? Transfer::Kind::kSend : Transfer::Kind::kRecv, PeerOf(program_, c),
                         b.send, b.recv, b.count, b.dtype});
  }
  if (!sends) return MakeKernel([=] { group->Exchange(transfers); });
  Step_& step = steps_[at];
  step.sends = group;
  step.tickets.reserve(transfers.size());
  return MakeKernel([=, &step] {
    for (const Transfer& t : transfers) step.tickets.push_back(group->BeginSend(t));
  });
}

template <typename Body>
void Rank::Described(size_t i, const Body& body) const {
  try {
    body();
  } catch (const Aborted&) {
    throw;
  } catch (const Diagnostic& d) {
    if (d.id() == "E4005") throw;  // names its instruction itself
    if (d.id() == "E1102" || d.id() == "E1103") throw NameIntegers(program_, i, d);
    throw d.id() == "E4003" ? NameInput(program_, i, d) : d.In(DescribeInstruction(program_, i));
  } catch (const std::exception& e) {
    if (IsNoMemory(e)) throw NoMemory(DescribeInstruction(program_, i));
    throw Diagnostic("E4006", ExitCode::kInternal, DescribeInstruction(program_, i), e.what());
  }
}

void Rank::FinishSends(size_t i, bool traced) {
  for (int send : sends_to_finish_[i]) {
    Step_& step = steps_[send];
    const int64_t begin = traced ? RankProfile::Now() : 0;
    Described(static_cast<size_t>(send), [&] {
      for (int64_t ticket : step.tickets) step.sends->FinishSend(ticket);
    });
    step.tickets.clear();
    if (!traced) continue;
    workers_.push_back(
        {profiled_steps_, static_cast<size_t>(send), 0, {begin, RankProfile::Now()}});
  }
}

void Rank::Run(size_t i) {
  Described(i, [&] {
    steps_[i].kernel->Run();
    if (options_.check_numerics) CheckNumerics(i);
  });
}

void Rank::RunTraced(size_t i, TimeSpan& span) {
  FinishSends(i, true);
  std::fill(teams_.spans.begin(), teams_.spans.end(), cpu::TeamTrace::Span());
  cpu::TraceTeams(&teams_);
  span.begin_ns = RankProfile::Now();
  try {
    Run(i);
  } catch (...) {
    cpu::TraceTeams(nullptr);
    throw;
  }
  span.end_ns = RankProfile::Now();
  cpu::TraceTeams(nullptr);
  for (int t = 1; t < threads_; ++t) {
    const auto& [begin, end] = teams_.spans[t];
    if (begin != 0) workers_.push_back({profiled_steps_, i, t, {begin, end}});
  }
}

void Rank::StartProfile(int64_t steps) {
  profile_.Start(steps, steps_.size());
  teams_.now = RankProfile::Now;
  teams_.spans.resize(static_cast<size_t>(threads_));
  workers_.clear();
  profiled_steps_ = 0;
}

void Rank::Step() {
  if (options_.poison) std::memset(arena_.data(), 0xff, static_cast<size_t>(arena_.bytes()));
  if (TimeSpan* spans = profile_.NextStep()) {
    for (size_t i = 0; i < steps_.size(); ++i) RunTraced(i, spans[i]);
    FinishSends(steps_.size(), true);
    ++profiled_steps_;
  } else {
    for (size_t i = 0; i < steps_.size(); ++i) {
      FinishSends(i, false);
      Run(i);
    }
    FinishSends(steps_.size(), false);
  }
}

MachinePeaks Rank::MeasurePeaks(int64_t ranks) const {
  constexpr int64_t kCopied = 64 << 20;  // by all ranks
  return {cpu::MeasureGemmFlops(threads_), cpu::MeasureCopyBytes(threads_, kCopied / ranks)};
}

void Rank::Abort(const std::string& reason) noexcept { world_->Abort(reason); }

void Rank::CheckNumerics(size_t i) const {
  for (int r : program_.instructions[i].results) {
    const Buffer& b = program_.buffers[r];
    int64_t at = FindNan(addresses_[r], b.type.dtype, NumElements(b.local_shape));
    if (at >= 0) ThrowNan(program_, i, r, at);
  }
}

int64_t Rank::held_bytes() const {
  int64_t n = arena_.bytes();
  for (const AlignedMemory& m : owned_) n += m.bytes();
  for (const Step_& s : steps_) n += s.kernel->held_bytes();
  return n;
}

}  // namespace shardc
