// Races among the threads of an emulated block, found by ThreadSanitizer where the sources are
// compiled with -fsanitize=thread: every thread of a block is a fiber of it, and what comes before
// what is said here alone, not by the order in which fibers happen to run.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace shardc::cuda::emulation {

#if defined(__SANITIZE_THREAD__)

inline constexpr bool kFindsRaces = true;

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}

// What the emulation itself does, which is no memory of a GPU.
class Unseen {
 public:
  Unseen() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
  Unseen(const Unseen&) = delete;
};

// What was done before a Before() is seen by who comes After() it, by the same address.
inline void Before(void* at) { __tsan_release(at); }
inline void After(void* at) { __tsan_acquire(at); }

// Who runs: the caller of the emulation, or a thread of the block.
class Runner {
 public:
  static Runner Caller() { return Runner(__tsan_get_current_fiber()); }
  static Runner Thread() { return Runner(__tsan_create_fiber(0)); }
  // Not instrumented: it begins for one and ends for the other.
  __attribute__((no_sanitize("thread"))) void Switch() const {
    __tsan_switch_to_fiber(fiber_, __tsan_switch_to_fiber_no_sync);
  }
  void End() const { __tsan_destroy_fiber(fiber_); }

 private:
  explicit Runner(void* fiber) : fiber_(fiber) {}
  void* fiber_;
};

#else

inline constexpr bool kFindsRaces = false;

struct Unseen {
  Unseen() {}
};
inline void Before(void*) {}
inline void After(void*) {}
struct Runner {
  static Runner Caller() { return {}; }
  static Runner Thread() { return {}; }
  void Switch() const {}
  void End() const {}
};

#endif

}  // namespace shardc::cuda::emulation
