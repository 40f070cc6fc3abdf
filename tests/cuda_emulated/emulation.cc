// Of the emulation (runtime/cuda/kernels/emulation.h) what is no template: once, and not as each
// test is compiled that includes it.
#include "runtime/cuda/kernels/emulation.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <new>

namespace shardc::cuda::emulation {

void Guarded::Resize(size_t bytes) {
  constexpr size_t kAlignment = 128;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  bytes_ = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const size_t pages = (bytes_ + page - 1) / page * page;
  if (pages + page > mapped_) {
    Release();
    mapped_ = pages + page;
    void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHARDC_CHECK(p != MAP_FAILED, "memory for a block");
    map_ = static_cast<std::byte*>(p);
    SHARDC_CHECK(mprotect(map_ + mapped_ - page, page, PROT_NONE) == 0, "memory for a block");
  }
  end_ = map_ + mapped_ - page;
  used_ = bytes;
}

void Guarded::Release() {
  if (map_) munmap(map_, mapped_);
  map_ = nullptr;
}

Machine& Machine::Get() {
  static Machine machine;
  return machine;
}

// SwitchStack leaves off here, and goes on at `to`, where another stack was left. NewStack is left
// so that it begins with `start`, which never returns.
#if defined(__x86_64__)
__attribute__((naked, noipa)) SHARDC_UNSEEN static void SwitchStack([[maybe_unused]] void** here,
                                                                    [[maybe_unused]] void* to) {
  asm(R"(
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret)");
}

static void* NewStack(char* memory, size_t bytes, void (*start)()) {
  void** top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(memory + bytes) / 16 * 16);
  *--top = nullptr;  // the caller of `start` is none
  *--top = reinterpret_cast<void*>(start);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  return top;
}
#else
// Slower: swapcontext is a system call.
SHARDC_UNSEEN static void SwitchStack(void** here, void* to) {
  ucontext_t left;
  *here = &left;
  swapcontext(&left, static_cast<ucontext_t*>(to));
}

static void* NewStack(char* memory, size_t bytes, void (*start)()) {
  auto* context = new (memory) ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = memory + sizeof(ucontext_t);
  context->uc_stack.ss_size = bytes - sizeof(ucontext_t);
  makecontext(context, start, 0);
  return context;
}
#endif

// Leaves the running fiber for the next that is ready, or, when none is, for the scheduler.
SHARDC_UNSEEN void Machine::GoOn() {
  void** here = running ? &running->at : &scheduler;
  const unsigned warp_count = (block.x + 31) / 32;
  unsigned warp = thread_index.x / 32;
  for (unsigned looked = 0; looked < warp_count && !failure; ++looked) {
    if (const uint32_t ready = warps.get()[warp].ready) {
      const int lane = reversed ? 31 - __builtin_clz(ready) : __builtin_ctz(ready);
      thread_index.x = warp * 32 + static_cast<unsigned>(lane);
      running = fibers[thread_index.x].get();
      running->runner.Switch();
      SwitchStack(here, running->at);
      return;
    }
    warp = (warp + (reversed ? warp_count - 1 : 1)) % warp_count;
  }
  running = nullptr;
  caller.Switch();
  SwitchStack(here, scheduler);
}

SHARDC_UNSEEN void Machine::Wait(Barrier& barrier, bool orders) {
  char* order = &barrier.order[barrier.generation % 2];
  if (orders) Before(order);
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    for (int w = barrier.first_warp; w < barrier.end_warp; ++w) {
      warps.get()[w].ready |= barrier.waiting[w];
      barrier.waiting[w] = 0;
    }
  } else {
    const unsigned warp = thread_index.x / 32;
    const uint32_t me = uint32_t{1} << thread_index.x % 32;
    barrier.waiting[warp] |= me;
    warps.get()[warp].ready &= ~me;
    GoOn();
  }
  if (orders) After(order);
}

// Not instrumented: it is never left. A fiber does the same thread of one block after another.
SHARDC_UNSEEN void Machine::Start() {
  Machine& m = Get();
  for (;;) {
    m.RunBody();
    m.running->done = true;
    --m.undone;
    m.warps.get()[m.thread_index.x / 32].ready &= ~(uint32_t{1} << m.thread_index.x % 32);
    m.GoOn();
  }
}

void Machine::RunBody() {
  After(&begin);
  try {
    body();
  } catch (...) {
    failure = std::current_exception();
  }
  Before(&end);
}

void Machine::RunBlock() {
  constexpr size_t kStack = 256 << 10;
  const size_t n = block.x;
  const int warp_count = static_cast<int>(n + 31) / 32;
  while (fibers.size() < n) fibers.push_back(std::make_unique<Fiber>());
  all = {static_cast<int>(n), 0, 0, warp_count};
  warps = std::make_unique<Warp[]>(static_cast<size_t>(warp_count));
  for (int w = 0; w < warp_count; ++w) warps[static_cast<size_t>(w)].barrier = {0, 0, w, w + 1};
  for (size_t i = 0; i < n; ++i) {
    Warp& warp = warps[i / 32];
    ++warp.barrier.expected;
    warp.ready |= uint32_t{1} << i % 32;
    Fiber& f = *fibers[i];
    // A block that failed leaves threads that are not done.
    if (!f.stack || !f.done) {
      if (!f.stack) f.stack = std::make_unique<char[]>(kStack);
      // Not all stacks of a warp in the same sets of the cache.
      f.at = NewStack(f.stack.get(), kStack - i % 32 * 128, &Machine::Start);
    }
    f.done = false;
  }
  undone = static_cast<int>(n);
  Before(&begin);
  thread_index.x = reversed ? block.x - 1 : 0;
  GoOn();
  if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  SHARDC_CHECK(undone == 0, "threads of a block wait at different barriers");
  After(&end);
}

void Machine::RunGrid(const void* kernel, int64_t blocks, int threads, size_t shared_bytes,
                      std::function<void()> run) {
  SHARDC_CHECK(blocks <= INT32_MAX && threads > 0 && threads <= kMostThreads, "a launch's size");
  SHARDC_CHECK(shared_bytes <= std::max(allowed[kernel], kSharedUnasked), "shared memory unasked");
  Unseen unseen;
  shared.Resize(shared_bytes);
  largest_shared = std::max(largest_shared, shared_bytes);
  grid = {static_cast<unsigned>(std::min(blocks, most_blocks)), 1, 1};
  block = {static_cast<unsigned>(threads), 1, 1};
  body = std::move(run);
  caller = Runner::Caller();
  exchanged = std::make_unique<Exchanged[]>((block.x + 31) / 32 * 32);
  for (unsigned b = 0; b < grid.x; ++b) {
    block_index = {reversed ? grid.x - 1 - b : b, 0, 0};
    shared.Fill();  // neither memory of another block, nor zero
    RunBlock();
    SHARDC_CHECK(shared.Whole(), "a kernel writes behind its shared memory");
  }
}

void Machine::AllowShared(const void* kernel, size_t bytes) {
  SHARDC_CHECK(bytes <= most_shared, "shared memory that no GPU has");
  allowed[kernel] = std::max(allowed[kernel], bytes);
}

}  // namespace shardc::cuda::emulation
