#include "tests/runtime/one_op.h"

#include <algorithm>
#include <cstddef>
#include <thread>

#include "runtime/kernel.h"

namespace shardc::testing {

OneOp::OneOp(const OpSample& sample) : graph_(BuildSample(sample)), operands_(sample.operands) {
  for (const Value* v : graph_.op->operands) types_.push_back(v->type);
  for (const Value* v : graph_.op->results) types_.push_back(v->type);
  for (size_t i = 0; i < types_.size(); ++i) {
    Buffer b;
    b.type = types_[i];
    b.local_shape = types_[i].shape;
    b.bytes = types_[i].bytes();
    program_.buffers.push_back(b);
    (i < operands_.size() ? instruction_.operands : instruction_.results)
        .push_back(static_cast<int>(i));
  }
  instruction_.op = sample.op;
  instruction_.attrs = graph_.op->attrs;
}

std::vector<HostTensor> OneOp::Run(bool reference, int operand, int result) const {
  std::vector<HostTensor> memory = operands_;
  for (size_t i = operands_.size(); i < types_.size(); ++i) {
    memory.emplace_back(types_[i].dtype, types_[i].shape);
    std::fill_n(memory.back().raw(), memory.back().bytes(), std::byte{0x77});
  }
  auto place = [&](size_t r) {
    bool shared = operand >= 0 && r == static_cast<size_t>(result);
    return shared ? static_cast<size_t>(operand) : operands_.size() + r;
  };
  std::vector<TensorView> in, out;
  for (size_t i = 0; i < types_.size(); ++i) {
    bool is_result = i >= operands_.size();
    HostTensor& t = memory[is_result ? place(i - operands_.size()) : i];
    (is_result ? out : in).push_back({t.raw(), types_[i].dtype, types_[i].shape, &types_[i]});
  }
  KernelRequest request{program_, instruction_,
                        KernelCall{&instruction_.attrs, in, out, nullptr, 0, 2}};
  auto kernel = reference ? MakeReferenceKernel(request) : MakeCpuKernel(request);
  if (!kernel) return {};
  kernel->Run();
  std::vector<HostTensor> results;
  for (size_t r = 0; r < out.size(); ++r) results.push_back(memory[place(r)]);
  return results;
}

int64_t OneOp::HeldBytes() const {
  std::vector<HostTensor> memory = operands_;
  std::vector<TensorView> in, out;
  memory.reserve(types_.size());
  for (size_t i = 0; i < types_.size(); ++i) {
    const bool is_result = i >= operands_.size();
    if (is_result) memory.emplace_back(types_[i].dtype, types_[i].shape);
    (is_result ? out : in)
        .push_back({memory[i].raw(), types_[i].dtype, types_[i].shape, &types_[i]});
  }
  int64_t held = -1;
  KernelRequest request{program_, instruction_,
                        KernelCall{&instruction_.attrs, in, out, nullptr, 0, 2}};
  std::thread([&] {
    if (auto kernel = MakeCpuKernel(request)) held = kernel->held_bytes();
  }).join();
  return held;
}

}  // namespace shardc::testing
