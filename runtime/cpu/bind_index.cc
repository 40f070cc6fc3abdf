#include "ir/ops/reference_util.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/kernel_table.h"

namespace shardc::cpu {
namespace {

// The table's (or its gradient's) rows as one stretch, and ids of i64.
bool Arguments(const KernelRequest& r, const TensorView& table, const TensorView& ids,
               EmbeddingArgs* args) {
  auto runs = r.call.Runs(table, 0);
  if (table.dtype != DType::kF32 || ids.dtype != DType::kI64 || runs.size() > 1 ||
      (!runs.empty() && runs[0].local != 0)) {
    return false;
  }
  args->ids = ids.as<const int64_t>();
  args->count = ids.num_elements();
  args->row_offset = runs.empty() ? 0 : runs[0].global;
  args->rows = runs.empty() ? 0 : runs[0].size;
  args->cols = Product(table.shape, 1, table.shape.size());
  return true;
}

std::unique_ptr<Kernel> MakeEmbedding(const KernelRequest& r) {
  EmbeddingArgs args;
  if (!Arguments(r, r.call.in[0], r.call.in[1], &args)) return nullptr;
  return MakeKernel([args, call = r.call, rows = r.call.GlobalDim(r.call.in[0], 0),
                     table = In(r, 0), y = Out(r, 0)] {
    reference::CheckRange(call, call.in[1], "embedding", "ids", 0, rows);
    Kernels().embedding.gather(args, table, y, call.threads);
  });
}

// Valid ids that follow each other in memory; none is a stretch of none.
struct Stretch {
  int64_t begin, count;
};

std::vector<Stretch> ValidStretches(const KernelCall& call, const TensorView& ids) {
  std::vector<Stretch> stretches;
  reference::ForEachValid(call, ids, [&](int64_t at) {
    Stretch* last = stretches.empty() ? nullptr : &stretches.back();
    if (last && last->begin + last->count == at) {
      ++last->count;
    } else {
      stretches.push_back({at, 1});
    }
  });
  if (stretches.empty()) stretches.push_back({0, 0});
  return stretches;
}

std::unique_ptr<Kernel> MakeEmbeddingGrad(const KernelRequest& r) {
  EmbeddingArgs args;
  const TensorView& ids = r.call.in[1];
  if (!Arguments(r, r.call.out[0], ids, &args)) return nullptr;
  // The kernel writes the valid rows only.
  const TensorView& table = r.call.out[0];
  int64_t padding = (table.shape[0] - args.rows) * args.cols;
  const float* sum = r.call.in.size() > 2 ? In(r, 2) : nullptr;
  return MakeKernel([args, padding, sum, stretches = ValidStretches(r.call, ids), dy = In(r, 0),
                     d_table = Out(r, 0), threads = r.call.threads] {
    if (sum && sum != d_table) std::copy_n(sum, args.rows * args.cols, d_table);
    for (size_t i = 0; i < stretches.size(); ++i) {
      EmbeddingArgs valid = args;
      valid.ids += stretches[i].begin;
      valid.count = stretches[i].count;
      const float* from = dy + stretches[i].begin * args.cols;
      Kernels().embedding.gradient(valid, from, d_table, sum != nullptr || i > 0, threads);
    }
    std::fill_n(d_table + args.rows * args.cols, padding, 0.0f);
  });
}

constexpr Binding kBindings[] = {{"embedding", MakeEmbedding},
                                 {"embedding_grad", MakeEmbeddingGrad}};

}  // namespace

std::span<const Binding> IndexBindings() { return kBindings; }

}  // namespace shardc::cpu
