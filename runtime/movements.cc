#include "runtime/movements.h"

#include <algorithm>
#include <cstring>

#include "ir/diagnostic.h"
#include "ir/program.h"
#include "ir/row_major.h"

namespace shardc {
namespace {

// Copies stretches along one dim between two tensors that agree in all other dims.
struct DimCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t outer = 1, from_stride = 0, to_stride = 0;  // bytes between rows of the dim
  struct Block {
    int64_t from, to, bytes;
  };
  std::vector<Block> blocks;
  bool clear = false;  // the destination has padding

  void operator()() const {
    if (clear) std::memset(to, 0, static_cast<size_t>(outer * to_stride));
    for (int64_t o = 0; o < outer; ++o) {
      for (const Block& b : blocks) {
        std::memcpy(to + o * to_stride + b.to, from + o * from_stride + b.from,
                    static_cast<size_t>(b.bytes));
      }
    }
  }
};

DimCopy MakeDimCopy(const std::byte* from, const Shape& from_shape,
                    const std::vector<Run>& from_runs, std::byte* to, const Shape& to_shape,
                    const std::vector<Run>& to_runs, size_t dim, DType dtype) {
  DimCopy copy;
  copy.from = from;
  copy.to = to;
  copy.outer = Product(to_shape, 0, dim);
  int64_t inner = Product(to_shape, dim + 1, to_shape.size()) * DTypeSize(dtype);
  copy.from_stride = from_shape[dim] * inner;
  copy.to_stride = to_shape[dim] * inner;
  int64_t filled = 0;
  for (const RunMatch& m : MatchRuns(from_runs, to_runs)) {
    copy.blocks.push_back({m.from * inner, m.to * inner, m.size * inner});
    filled += m.size;
  }
  copy.clear = filled < to_shape[dim];
  return copy;
}

std::unique_ptr<Kernel> MakeCopy(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  auto bytes = static_cast<size_t>(in.num_elements() * DTypeSize(in.dtype));
  return MakeKernel([from = in.data, to = out.data, bytes] {
    if (from != to) std::memmove(to, from, bytes);
  });
}

std::unique_ptr<Kernel> MakeLocalSlice(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  auto dim = static_cast<int>(r.call.attrs->Int("dim"));
  return MakeKernel(MakeDimCopy(in.data, in.shape, r.call.Runs(in, dim), out.data, out.shape,
                                r.call.Runs(out, dim), static_cast<size_t>(dim), in.dtype));
}

std::unique_ptr<Kernel> MakeZeroPadding(const KernelRequest& r) {
  const TensorView &in = r.call.in[0], &out = r.call.out[0];
  // The complement of the runs, per dim.
  std::vector<DimCopy> gaps;
  int64_t element = DTypeSize(in.dtype);
  for (int d = 0; d < out.rank(); ++d) {
    auto dim = static_cast<size_t>(d);
    std::vector<Run> runs = r.call.Runs(out, d);
    std::sort(runs.begin(), runs.end(), [](auto& a, auto& b) { return a.local < b.local; });
    DimCopy gap;
    gap.to = out.data;
    gap.outer = Product(out.shape, 0, dim);
    int64_t inner = Product(out.shape, dim + 1, out.shape.size()) * element;
    gap.to_stride = out.shape[dim] * inner;
    int64_t at = 0;
    auto until = [&](int64_t end) {
      if (end > at) gap.blocks.push_back({0, at * inner, (end - at) * inner});
    };
    for (const Run& run : runs) {
      until(run.local);
      at = run.local + run.size;
    }
    until(out.shape[dim]);
    if (!gap.blocks.empty()) gaps.push_back(std::move(gap));
  }
  auto bytes = static_cast<size_t>(in.num_elements() * element);
  return MakeKernel([from = in.data, to = out.data, bytes, gaps] {
    if (from != to) std::memcpy(to, from, bytes);
    for (const DimCopy& gap : gaps) {
      for (int64_t o = 0; o < gap.outer; ++o) {
        for (const auto& b : gap.blocks) {
          std::memset(gap.to + o * gap.to_stride + b.to, 0, static_cast<size_t>(b.bytes));
        }
      }
    }
  });
}

std::vector<int> Axes(const Mesh& mesh, const Strings& names) {
  std::vector<int> axes;
  for (const std::string& name : names) {
    auto axis = mesh.FindAxis(name);
    SHARDC_CHECK(axis, "no axis ", name);
    axes.push_back(*axis);
  }
  return axes;
}

std::unique_ptr<Kernel> MakePieces(const KernelRequest& r, bool pack) {
  PieceMoves m = PlanPieces(r, pack);
  const TensorView& whole = *m.whole;
  auto dim = static_cast<size_t>(m.dim);
  std::vector<DimCopy> copies;
  for (size_t j = 0; j < m.runs.size(); ++j) {
    std::byte* at = m.staged->data + static_cast<int64_t>(j) * m.piece_bytes;
    copies.push_back(pack ? MakeDimCopy(whole.data, whole.shape, m.whole_runs, at, m.piece,
                                        m.runs[j], dim, whole.dtype)
                          : MakeDimCopy(at, m.piece, m.runs[j], whole.data, whole.shape,
                                        m.whole_runs, dim, whole.dtype));
  }
  // Pieces of one tensor: together they fill it, so each alone must not clear it.
  bool clear = false;
  if (!pack) {
    int64_t filled = 0;
    for (const Run& run : m.whole_runs) filled += run.size;
    clear = filled < whole.shape[dim];
    for (DimCopy& c : copies) c.clear = false;
  }
  auto bytes = static_cast<size_t>(whole.num_elements() * DTypeSize(whole.dtype));
  return MakeKernel([copies, clear, to = whole.data, bytes] {
    if (clear) std::memset(to, 0, bytes);
    for (const DimCopy& c : copies) c();
  });
}

}  // namespace

PieceMoves PlanPieces(const KernelRequest& r, bool pack) {
  const Attributes& attrs = *r.call.attrs;
  const Mesh& mesh = *r.call.mesh;
  PieceMoves m;
  m.whole = pack ? &r.call.in[0] : &r.call.out[0];
  m.staged = pack ? &r.call.out[0] : &r.call.in[0];
  m.dim = static_cast<int>(attrs.Int("dim"));
  DimSharding cut;
  for (int a : Axes(mesh, attrs.StringList("cut_axes"))) cut.axes.push_back(a);
  cut.granule = attrs.Int("granule", 1);
  cut.segments = attrs.IntList("segments", {});
  m.whole_runs = r.call.Runs(*m.whole, m.dim);
  m.piece.assign(m.staged->shape.begin() + 1, m.staged->shape.end());
  m.piece_bytes = NumElements(m.piece) * DTypeSize(m.staged->dtype);
  int64_t size = m.whole->type->shape[m.dim];
  for (int rank : mesh.Group(r.call.rank, Axes(mesh, attrs.StringList("axes")))) {
    m.runs.push_back(LocalRuns(size, cut, mesh, rank));
  }
  return m;
}

std::vector<RunMatch> MatchRuns(const std::vector<Run>& from, const std::vector<Run>& to) {
  std::vector<Run> a = from, b = to;
  auto by_global = [](const Run& x, const Run& y) { return x.global < y.global; };
  std::sort(a.begin(), a.end(), by_global);
  std::sort(b.begin(), b.end(), by_global);
  std::vector<RunMatch> matches;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    int64_t begin = std::max(a[i].global, b[j].global);
    int64_t end_a = a[i].global + a[i].size, end_b = b[j].global + b[j].size;
    int64_t end = std::min(end_a, end_b);
    if (end > begin) {
      matches.push_back(
          {a[i].local + begin - a[i].global, b[j].local + begin - b[j].global, end - begin});
    }
    if (end_a <= end_b) ++i;
    if (end_b <= end_a) ++j;
  }
  return matches;
}

std::unique_ptr<Kernel> MakeMovementKernel(const KernelRequest& request) {
  const std::string& op = request.instruction.op;
  if (op == "copy") return MakeCopy(request);
  if (op == "local_slice") return MakeLocalSlice(request);
  if (op == "zero_padding") return MakeZeroPadding(request);
  if (op == "pack") return MakePieces(request, true);
  if (op == "unpack") return MakePieces(request, false);
  return nullptr;
}

}  // namespace shardc
