#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "ir/program.h"
#include "ir/row_major.h"
#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/matmul.h"
#include "runtime/cpu/kernels/matmul_bf16.h"
#include "runtime/cpu/kernels/matmul_rows.h"
#include "runtime/cpu/kernels/parallel.h"

namespace shardc::cpu {
namespace {

// What a product is added to: put where its result goes, unless it is made in that very place.
struct Addend {
  const std::byte* from;
  std::byte* to;
  int64_t bytes;
  int threads;
  void Place() const {
    if (from == to) return;
    ParallelFor(threads, bytes, int64_t{64} << 10, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
    });
  }
};
std::optional<Addend> AddendOf(const KernelRequest& r, bool accumulate, size_t operand = 2) {
  if (!accumulate) return std::nullopt;
  const TensorView& c = r.call.out[0];
  return Addend{r.call.in[operand].data, c.data, c.num_elements() * DTypeSize(c.dtype),
                r.call.threads};
}

// Makes the ends of rows that are longer than the product's zero.
struct Ends {
  std::byte* c = nullptr;
  int64_t rows = 0, row_bytes = 0, from = 0;
  explicit Ends(const KernelRequest& r, int64_t n) {
    const TensorView& out = r.call.out[0];
    const int64_t size = DTypeSize(out.dtype), length = out.shape.back();
    if (length <= n) return;
    c = out.data;
    rows = out.num_elements() / length;
    row_bytes = length * size;
    from = n * size;
  }
  void Clear() const {
    for (int64_t i = 0; i < rows; ++i) {
      std::memset(c + i * row_bytes + from, 0, static_cast<size_t>(row_bytes - from));
    }
  }
};

// Where the matrices of a strided batch begin, in elements.
struct Part {
  int64_t a = 0, b = 0, c = 0;
};

// The leading dims of a product as one batch, of the innermost that both operands have, for each
// index of the others, along which operands are broadcast.
struct Batches {
  int64_t batch = 1;
  std::vector<Part> parts = {Part()};
  Batches(const Shape& a, const Shape& b, const Shape& c) {
    int64_t a_step = a[a.size() - 2] * a.back(), b_step = b[b.size() - 2] * b.back(),
            c_step = c[c.size() - 2] * c.back();
    for (size_t back = 3; back <= c.size(); ++back) {
      const int64_t n = c[c.size() - back], of_a = back > a.size() ? 1 : a[a.size() - back],
                    of_b = back > b.size() ? 1 : b[b.size() - back];
      if (parts.size() == 1 && of_a == of_b) {
        batch *= n;
      } else {
        const std::vector<Part> inner = std::exchange(parts, {});
        for (int64_t i = 0; i < n; ++i) {
          for (const Part& p : inner) {
            parts.push_back({p.a + (of_a > 1 ? i * a_step : 0), p.b + (of_b > 1 ? i * b_step : 0),
                             p.c + i * c_step});
          }
        }
      }
      a_step *= of_a;
      b_step *= of_b;
      c_step *= n;
    }
  }
};

class MatmulKernel : public Kernel {
 public:
  MatmulKernel(const KernelRequest& r, const MatmulConfig& config, std::vector<Part> parts)
      : matmul_(MatmulF32::Create(config)),
        addend_(AddendOf(r, config.accumulate)),
        ends_(r, config.n),
        a_(In(r, 0)),
        b_(In(r, 1)),
        bias_(config.bias ? In(r, 2) : nullptr),
        c_(Out(r, 0)),
        parts_(std::move(parts)),
        packs_(config.pack_b) {}

  void Run() override {
    if (packs_) matmul_.PackB(b_);
    packs_ = false;
    if (addend_) addend_->Place();
    for (const Part& p : parts_) matmul_.Execute(a_ + p.a, b_ + p.b, bias_, c_ + p.c);
    ends_.Clear();
  }

  int64_t held_bytes() const override { return matmul_.held_bytes(); }

 private:
  MatmulF32 matmul_;
  std::optional<Addend> addend_;
  Ends ends_;
  const float *a_, *b_, *bias_;
  float* c_;
  std::vector<Part> parts_;
  bool packs_;  // in the first step
};

// bf16 operands; the result (with what it is added to) and the bias are bf16 or f32. Null
// where this machine has no such product.
std::unique_ptr<Kernel> MakeBf16(const KernelRequest& r, const MatmulConfig& f32,
                                 std::vector<Part> parts) {
  auto is_f32 = [](const TensorView& v) { return v.dtype == DType::kF32; };
  MatmulBf16Config config;
  config.m = f32.m;
  config.n = f32.n;
  config.k = f32.k;
  config.batch = f32.batch;
  config.lda = f32.lda;
  config.ldc = f32.ldc;
  config.transpose_a = f32.transpose_a;
  config.transpose_b = f32.transpose_b;
  config.bias = f32.bias;
  config.accumulate = f32.accumulate;
  config.bias_f32 = f32.bias && is_f32(r.call.in[2]);
  config.result_f32 = is_f32(r.call.out[0]);
  config.threads = r.call.threads;
  std::shared_ptr<MatmulBf16> matmul = MatmulBf16::Create(config);
  if (!matmul) return nullptr;
  for (Part& p : parts) {  // in bytes
    p = {p.a * DTypeSize(DType::kBF16), p.b * DTypeSize(DType::kBF16),
         p.c * DTypeSize(r.call.out[0].dtype)};
  }
  return MakeKernel(
      [matmul, a = r.call.in[0].data, b = r.call.in[1].data,
       bias = f32.bias ? r.call.in[2].data : nullptr, c = r.call.out[0].data,
       addend = AddendOf(r, f32.accumulate), ends = Ends(r, f32.n), parts = std::move(parts)] {
        if (addend) addend->Place();
        for (const Part& p : parts) matmul->Execute(a + p.a, b + p.b, bias, c + p.c);
        ends.Clear();
      },
      matmul->held_bytes());
}

bool Bf16Operands(const KernelRequest& r) {
  auto fits = [](const TensorView& v) { return v.dtype == DType::kBF16 || v.dtype == DType::kF32; };
  return r.call.in[0].dtype == DType::kBF16 && r.call.in[1].dtype == DType::kBF16 &&
         fits(r.call.out[0]) && (r.call.in.size() < 3 || fits(r.call.in[2]));
}

bool IsState(const KernelRequest& r, size_t operand) {
  const int root = RootOf(r.program, r.instruction.operands[operand]);
  return r.program.buffers[root].space == Space::kState;
}

std::unique_ptr<Kernel> Make(const KernelRequest& r, MatmulConfig config,
                             std::vector<Part> parts = {Part()}) {
  if (config.m == 0 || config.n == 0 || config.k == 0 || config.batch == 0) return nullptr;
  if (Bf16Operands(r)) return MakeBf16(r, config, std::move(parts));
  config.threads = r.call.threads;
  // A packed copy pays off only for few rows: with more, oneDNN's sgemm packs as it goes, as fast
  // (tests/runtime/kernels/kernels_bench.cc), and no second copy of the weights is held; and only
  // where it serves more than one step.
  // Measured (Zen 4, oneDNN 2.6): 1.1 to 1.6 times as fast at these numbers of rows, 0.95 to 1.1
  // above; of a transposed weight 1.1 to 1.3 at the most.
  const int64_t few = config.transpose_b ? 128 : 48;
  config.pack_b = config.batch == 1 && parts.size() == 1 && !config.transpose_a &&
                  config.m <= few && !r.states_change && IsState(r, 1);
  return std::make_unique<MatmulKernel>(r, config, std::move(parts));
}

std::unique_ptr<Kernel> MakeMatmul(const KernelRequest& r, bool nt, bool bias = false) {
  if (!AllF32(r) && !Bf16Operands(r)) return nullptr;
  const Shape &a = r.call.in[0].shape, &b = r.call.in[1].shape, &c = r.call.out[0].shape;
  size_t rank = a.size();
  if (rank < 2) return nullptr;
  MatmulConfig config;
  config.transpose_b = nt;
  config.bias = bias;
  config.accumulate = !bias && r.call.in.size() > 2;
  // Rows of the operand and of the result may be longer than what counts.
  config.k = r.call.attrs->Int("cols", a[rank - 1]);
  config.lda = a[rank - 1];
  config.n = nt ? b[b.size() - 2] : b.back();
  config.ldc = c.back();
  if (b.size() == 2) {
    config.m = Product(a, 0, rank - 1);
    return Make(r, config);
  }
  config.m = a[rank - 2];
  Batches batches(a, b, c);
  config.batch = batches.batch;
  return Make(r, config, std::move(batches.parts));
}

std::unique_ptr<Kernel> MakeMatmulNN(const KernelRequest& r) { return MakeMatmul(r, false); }
std::unique_ptr<Kernel> MakeMatmulNT(const KernelRequest& r) { return MakeMatmul(r, true); }
std::unique_ptr<Kernel> MakeLinear(const KernelRequest& r) {
  return MakeMatmul(r, r.call.attrs->Bool("nt"), true);
}

std::unique_ptr<Kernel> MakeMatmulTN(const KernelRequest& r) {
  if (!AllF32(r) && !Bf16Operands(r)) return nullptr;
  const Shape &a = r.call.in[0].shape, &b = r.call.in[1].shape;
  size_t batch = static_cast<size_t>(r.call.attrs->Int("batch", 0));
  MatmulConfig config;
  config.transpose_a = true;
  config.accumulate = r.call.in.size() > 2;
  config.batch = Product(a, 0, batch);
  config.k = Product(a, batch, a.size() - 1);
  config.m = r.call.attrs->Int("cols", a.back());
  config.lda = a.back();
  config.n = b.back();
  return Make(r, config);
}

// Products of the rows that operand 2 chooses, of each matrix for itself.
std::unique_ptr<Kernel> MakeRows(const KernelRequest& r, bool nt, bool tn) {
  const TensorView &a = r.call.in[0], &b = r.call.in[1], &rows = r.call.in[2], &c = r.call.out[0];
  auto fits = [](DType type) { return type == DType::kBF16 || type == DType::kF32; };
  if (a.dtype != b.dtype || !fits(a.dtype) || !fits(c.dtype)) return nullptr;
  if (a.dtype == DType::kF32 && c.dtype != DType::kF32) return nullptr;
  MatmulRowsConfig config;
  config.rows = rows.shape.back();
  config.k = a.shape.back();
  config.n = c.shape.back();
  config.transpose_b = nt;
  config.sums = tn;
  config.accumulate = r.call.in.size() > 3;
  config.bf16 = a.dtype == DType::kBF16;
  config.result_bf16 = c.dtype == DType::kBF16;
  config.threads = r.call.threads;
  const Shape lead(rows.shape.begin(), rows.shape.end() - 1);
  // Where matrix i begins of operands that broadcast.
  auto at = [&](const TensorView& v, int64_t i) {
    const Shape own(v.shape.begin(), v.shape.end() - 2);
    const Shape strides = BroadcastStrides(own, lead), place = PlaceOf(i, lead);
    return std::inner_product(place.begin(), place.end(), strides.begin(), int64_t{0}) *
           v.shape[v.shape.size() - 2] * v.shape.back() * DTypeSize(v.dtype);
  };
  for (int64_t i = 0; i < NumElements(lead); ++i) {
    config.matrices.push_back({at(a, i), at(b, i), at(c, i)});
  }
  std::shared_ptr<MatmulRows> product = MatmulRows::Create(config);
  if (!product) return nullptr;
  return MakeKernel(
      [product, addend = AddendOf(r, config.accumulate, 3), a = a.data, b = b.data, c = c.data,
       rows = rows.as<const uint8_t>()] {
        if (addend) addend->Place();
        product->Execute(rows, a, b, c);
      },
      product->held_bytes());
}
std::unique_ptr<Kernel> MakeRowsNN(const KernelRequest& r) { return MakeRows(r, false, false); }
std::unique_ptr<Kernel> MakeRowsNT(const KernelRequest& r) { return MakeRows(r, true, false); }
std::unique_ptr<Kernel> MakeRowsTN(const KernelRequest& r) { return MakeRows(r, false, true); }

constexpr Binding kBindings[] = {{"matmul", MakeMatmulNN},      {"matmul_nt", MakeMatmulNT},
                                 {"matmul_tn", MakeMatmulTN},   {"linear", MakeLinear},
                                 {"matmul_rows", MakeRowsNN},   {"matmul_rows_nt", MakeRowsNT},
                                 {"matmul_rows_tn", MakeRowsTN}};

}  // namespace

std::span<const Binding> MatmulBindings() { return kBindings; }

}  // namespace shardc::cpu
