#include "frontend/onnx/refuse_op.h"

#include <cctype>
#include <set>
#include <string_view>

#include "frontend/onnx/convert_util.h"
#include "frontend/onnx/load_model.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

// QLinearConv, ConvInteger, and of others what dequantize_weights.h leaves.
bool IsQuantized(std::string_view op) {
  const bool q = op.size() > 1 && op[0] == 'Q' && std::isupper(op[1]);
  auto holds = [op](std::string_view part) { return op.find(part) != op.npos; };
  return q || holds("uantize") || holds("MatMulInteger") || op == "ConvInteger" ||
         op.starts_with("MatMulNBits") || op.starts_with("MatMulBnb4");
}

std::string WayAround(const std::string& op, const std::string& domain, const std::string& key,
                      const std::vector<std::string>& known) {
  const bool microsoft = domain.starts_with("com.microsoft");  // ".nchwc" too
  if (microsoft && (op.starts_with("Packed") || op == "RemovePadding" || op == "RestorePadding"))
    return "compile the model as it was before its sequences were packed";
  if (microsoft && op.starts_with("DecoderMasked"))
    return "it generates one token at a time: export the model without a cache";
  if (IsQuantized(op)) return "compile the model as it was before it was quantized";
  if (microsoft) return kUnoptimized;
  std::string near = DidYouMean(key, known);
  return near.empty() ? "" : StrCat("the nearest ops that are: ", near);
}

}  // namespace

std::string OpKey(const onnx::NodeProto& proto) {
  const std::string domain = NormalDomain(proto.domain());
  return domain.empty() ? proto.op_type() : domain + "::" + proto.op_type();
}

void RefuseOp(const onnx::NodeProto& proto, const Node& node,
              const std::vector<std::string>& known) {
  const std::string domain = NormalDomain(proto.domain());
  static const std::set<std::string_view> kLoops = {"Scan", "SequenceMap"};
  if (domain.empty() && kLoops.contains(proto.op_type())) {
    throw Diagnostic("E1307", ExitCode::kBadModel, node.Where(), "loops are not supported",
                     "export the model with its loops unrolled");
  }
  throw Diagnostic("E1301", ExitCode::kBadModel, node.Where(),
                   StrCat("op ", proto.op_type(), " of ",
                          domain.empty() ? "the default domain" : "domain '" + domain + "'",
                          ", opset ", node.opset(), ", is not supported"),
                   WayAround(proto.op_type(), domain, OpKey(proto), known));
}

}  // namespace shardc::onnx_import
