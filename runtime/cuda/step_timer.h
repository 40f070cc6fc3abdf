// Times the instructions of one rank by events on its streams, for profiles.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/profile.h"

namespace shardc::cuda {

class StepTimer {
 public:
  StepTimer(Device& device, size_t instructions) : device_(device), instructions_(instructions) {}
  ~StepTimer();
  StepTimer(const StepTimer&) = delete;
  StepTimer& operator=(const StepTimer&) = delete;

  // Records the next steps, as RankProfile::Start.
  void Start(int64_t steps);
  // Whether the step that begins now on `s` is recorded; then it must not be captured.
  bool BeginStep(Stream s);
  // Around what an instruction enqueues on its stream, in a step that is recorded.
  void Begin(int instruction, Stream s);
  void End(int instruction, Stream s);
  // After the step is done.
  void EndStep();
  std::vector<TimeSpan> Take();

 private:
  Device& device_;
  const size_t instructions_;
  RankProfile profile_;
  std::vector<Event> events_;  // of the step, then two for each instruction; none until Start
  TimeSpan* step_ = nullptr;
  int64_t began_ns_ = 0;
};

}  // namespace shardc::cuda
