// bitwise_and bitwise_or bitwise_xor, of integers.
#include <functional>

#include "ir/ops/elementwise.h"
#include "ir/ops/infer_util.h"

namespace shardc {
namespace {

template <typename Fn>
void AddBitwise(OpRegistry& registry, std::string_view name, Fn fn) {
  OpDef def;
  def.name = name;
  def.min_operands = def.max_operands = 2;
  def.elementwise = true;
  def.infer = [name](const InferArgs& args) {
    RequireInteger(name, args[0], "operand 0");
    RequireSameDType(name, args, 0, 2);
    Shape shape = BroadcastShapes(name, args[0].shape, args[1].shape);
    return std::vector<TensorType>{TensorType(args[0].dtype, std::move(shape))};
  };
  def.rule = [](const Op& op) { return ElementwiseRule(op); };
  def.no_gradient = "the result is an integer";
  def.gradient_is_zero = true;
  def.reference = [fn](const KernelCall& call) {
    reference::DispatchNumeric(call.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      if constexpr (!reference::kIsFloat<T>) MapElements<T, T, T>(call, fn);
    });
  };
  registry.Add(std::move(def));
}

}  // namespace

void RegisterBitwiseOps(OpRegistry& registry) {
  AddBitwise(registry, "bitwise_and", std::bit_and<int64_t>());
  AddBitwise(registry, "bitwise_or", std::bit_or<int64_t>());
  AddBitwise(registry, "bitwise_xor", std::bit_xor<int64_t>());
}

}  // namespace shardc
