#include "ir/ops/reference_util.h"
#include "ir/place_in_whole.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/gather.h"
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

// Of gather_nd and its gradient, where `x` is what is picked from or its gradient.
bool Tuples(const KernelRequest& r, const TensorView& x, TupleArgs* args) {
  const TensorView& indices = r.call.in[1];
  for (int d = 0; d < indices.rank(); ++d) {
    if (!Full(r, indices, d)) return false;
  }
  const auto batch = static_cast<size_t>(r.call.attrs->Int("batch_dims", 0));
  const auto k = static_cast<size_t>(indices.shape.back());
  if (indices.dtype != DType::kI64 || k > TupleArgs::kMaxDims || x.num_elements() == 0)
    return false;
  args->indices = indices.as<const int64_t>();
  args->groups = Product(x.shape, 0, batch);
  args->tuples = Product(indices.shape, batch, indices.shape.size() - 1);
  args->dims = static_cast<int>(k);
  args->group_size = Product(x.shape, batch, x.shape.size());
  args->block = Product(x.shape, batch + k, x.shape.size());
  for (size_t d = 0; d < k; ++d) {
    args->sizes[d] = x.shape[batch + d];
    args->strides[d] = Product(x.shape, batch + d + 1, x.shape.size());
  }
  return true;
}

void CheckTuples(const KernelCall& call, std::string_view op, const TupleArgs& args, int64_t bad) {
  if (bad < 0) return;
  const int64_t n = args.sizes[bad % args.dims];
  throw reference::OutOfRange(op, "indices", PlaceInWhole(call, call.in[1], bad), args.indices[bad],
                              -n, n);
}

std::unique_ptr<Kernel> MakeGatherNd(const KernelRequest& r) {
  TupleArgs args;
  const TensorView& x = r.call.in[0];
  if (!Tuples(r, x, &args)) return nullptr;
  return MakeKernel([args, call = r.call] {
    const TensorView& x = call.in[0];
    const int bytes = static_cast<int>(DTypeSize(x.dtype));
    CheckTuples(call, "gather_nd", args,
                GatherTuples(args, x.data, call.out[0].data, bytes, call.threads));
  });
}

std::unique_ptr<Kernel> MakeGatherNdGrad(const KernelRequest& r) {
  TupleArgs args;
  if (r.call.in[0].dtype != DType::kF32 || !Tuples(r, r.call.out[0], &args)) return nullptr;
  return MakeKernel([args, call = r.call, dy = In(r, 0), dx = Out(r, 0)] {
    CheckTuples(call, "gather_nd_grad", args, AddTuples(args, dy, dx, call.threads));
  });
}

constexpr Binding kBindings[] = {{"embedding", MakeEmbedding},
                                 {"embedding_grad", MakeEmbeddingGrad},
                                 {"gather_nd", MakeGatherNd},
                                 {"gather_nd_grad", MakeGatherNdGrad}};

}  // namespace

std::span<const Binding> IndexBindings() { return kBindings; }

}  // namespace shardc::cpu
