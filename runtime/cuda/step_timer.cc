#include "runtime/cuda/step_timer.h"

#include <cmath>

namespace shardc::cuda {

StepTimer::~StepTimer() {
  for (Event e : events_) device_.DestroyEvent(e);
}

void StepTimer::Start(int64_t steps) {
  profile_.Start(steps, instructions_);
  while (events_.size() < 1 + 2 * instructions_) events_.push_back(device_.MakeTimedEvent());
}

bool StepTimer::BeginStep(Stream s) {
  step_ = profile_.NextStep();
  if (!step_) return false;
  began_ns_ = RankProfile::Now();
  device_.Record(events_[0], s);
  return true;
}

void StepTimer::Begin(int instruction, Stream s) {
  if (step_) device_.Record(events_[1 + 2 * static_cast<size_t>(instruction)], s);
}

void StepTimer::End(int instruction, Stream s) {
  if (step_) device_.Record(events_[2 + 2 * static_cast<size_t>(instruction)], s);
}

void StepTimer::EndStep() {
  if (!step_) return;
  auto at = [&](size_t event) {
    double ms = device_.Milliseconds(events_[0], events_[event]);
    return began_ns_ + static_cast<int64_t>(std::llround(1e6 * ms));
  };
  for (size_t i = 0; i < instructions_; ++i) step_[i] = {at(1 + 2 * i), at(2 + 2 * i)};
  step_ = nullptr;
}

std::vector<TimeSpan> StepTimer::Take() { return profile_.Take(); }

}  // namespace shardc::cuda
