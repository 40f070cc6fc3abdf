// Attention of equal parts of a batch, one after the other, where all of it at once wants too much
// work memory: cuDNN's backward for Hopper that gives the same bits in every run keeps two bytes of
// each score, 1.5 GiB for a layer of GPT-2 of 64 x 1024 tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "runtime/cuda/cudnn/attention_library.h"

namespace shardc::cuda {

// What an instruction may take that has no scratch.
inline constexpr int64_t kMostAttentionWorkspace = int64_t{256} << 20;

class BatchParts : public AttentionEngine {
 public:
  // `engine` is of `part`, which is one of `count`. `whole` is kept for others that ask for it.
  BatchParts(std::shared_ptr<AttentionEngine> engine, const AttentionProblem& part, int64_t count,
             std::shared_ptr<AttentionEngine> whole)
      : engine_(std::move(engine)), whole_(std::move(whole)), part_(part), count_(count) {}
  int64_t workspace_bytes() const override { return engine_->workspace_bytes(); }
  std::string Run(const AttentionTensors& tensors, void* workspace) override {
    std::string failure;
    for (int64_t i = 0; i < count_ && failure.empty(); ++i) {
      failure = engine_->Run(PartOf(tensors, i * part_.b), workspace);
    }
    return failure;
  }

 private:
  AttentionTensors PartOf(AttentionTensors t, int64_t example) const {
    auto move = [](void*& p, int64_t bytes) {
      if (p) p = static_cast<std::byte*>(p) + bytes;
    };
    for (void** p : {&t.q, &t.dq}) move(*p, 2 * example * part_.q_strides[0]);
    for (void** p : {&t.k, &t.dk}) move(*p, 2 * example * part_.k_strides[0]);
    for (void** p : {&t.v, &t.dv}) move(*p, 2 * example * part_.v_strides[0]);
    for (void** p : {&t.o, &t.grad}) move(*p, 2 * example * part_.o_strides[0]);
    move(t.statistics, 4 * example * part_.hq * part_.s);
    return t;
  }

  std::shared_ptr<AttentionEngine> engine_, whole_;
  AttentionProblem part_;
  int64_t count_;
};

// What `make` gives for the problem, or for the fewest parts of its batch whose workspace is at
// most `most`, were it the same for each example; at least one example each. Null, with the reason,
// where it gives none.
inline std::shared_ptr<AttentionEngine> MakeWithin(
    int64_t most, const AttentionProblem& problem,
    const std::function<std::shared_ptr<AttentionEngine>(const AttentionProblem&,
                                                         std::string* why_not)>& make,
    std::string* why_not) {
  std::shared_ptr<AttentionEngine> whole = make(problem, why_not);
  if (!whole || whole->workspace_bytes() <= most) return whole;
  int64_t count = (whole->workspace_bytes() + most - 1) / most;
  while (count < problem.b && problem.b % count != 0) ++count;
  count = std::min(count, problem.b);
  AttentionProblem part = problem;
  part.b = problem.b / count;
  std::shared_ptr<AttentionEngine> engine = count > 1 ? make(part, why_not) : nullptr;
  if (engine) return std::make_shared<BatchParts>(engine, part, count, whole);
  why_not->clear();
  return whole;
}

}  // namespace shardc::cuda
