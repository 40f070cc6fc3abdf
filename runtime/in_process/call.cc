#include "runtime/in_process/call.h"

#include <algorithm>

#include "ir/diagnostic.h"

namespace shardc::in_process {
namespace {

std::string_view OpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      return "min";
  }
  return "?";
}

std::string Head(const Call& call) {
  switch (call.kind) {
    case CallKind::kAllReduce:
      return StrCat("all_reduce(", OpName(call.op), ")");
    case CallKind::kAllGather:
      return "all_gather";
    case CallKind::kReduceScatter:
      return StrCat("reduce_scatter(", OpName(call.op), ")");
    case CallKind::kAllToAll:
      return "all_to_all";
    case CallKind::kBroadcast:
      return StrCat("broadcast(root ", call.root, ")");
    case CallKind::kBarrier:
      return "barrier";
    case CallKind::kSplit:
      return "split";
  }
  return "?";
}

bool SameShape(const Buffers& a, const Buffers& b) {
  return a.count == b.count && a.dtype == b.dtype;
}

std::string Amount(const Buffers& b) { return StrCat(b.count, " ", DTypeName(b.dtype)); }

}  // namespace

bool Agree(const Call& a, const Call& b) {
  return a.kind == b.kind && a.op == b.op && a.root == b.root &&
         std::equal(a.buffers.begin(), a.buffers.end(), b.buffers.begin(), b.buffers.end(),
                    SameShape);
}

std::string Describe(const Call& call) {
  if (call.buffers.empty()) return Head(call);
  if (call.buffers.size() == 1) return StrCat(Head(call), " of ", Amount(call.buffers[0]));
  return StrCat(Head(call), " of ", call.buffers.size(), " buffers");
}

std::string DescribeDifference(int rank_a, const Call& a, int rank_b, const Call& b) {
  std::string out =
      StrCat("rank ", rank_a, " calls ", Describe(a), ", rank ", rank_b, " calls ", Describe(b));
  if (a.buffers.size() > 1 && a.buffers.size() == b.buffers.size()) {
    for (size_t i = 0; i < a.buffers.size(); ++i) {
      if (SameShape(a.buffers[i], b.buffers[i])) continue;
      return StrCat(out, " (buffer ", i, ": ", Amount(a.buffers[i]), " and ", Amount(b.buffers[i]),
                    ")");
    }
  }
  return out;
}

std::string Describe(const Transfer& transfer, int group_rank_of_peer) {
  const bool send = transfer.kind == Transfer::Kind::kSend;
  return StrCat(send ? "send of " : "recv of ", transfer.count, " ", DTypeName(transfer.dtype),
                send ? " to rank " : " from rank ", group_rank_of_peer);
}

}  // namespace shardc::in_process
