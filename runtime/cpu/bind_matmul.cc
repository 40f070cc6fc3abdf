#include <vector>

#include "runtime/cpu/bind.h"
#include "runtime/cpu/kernels/matmul.h"

namespace shardc::cpu {
namespace {

class MatmulKernel : public Kernel {
 public:
  MatmulKernel(const KernelRequest& r, const MatmulConfig& config)
      : matmul_(MatmulF32::Create(config)),
        a_(In(r, 0)),
        b_(In(r, 1)),
        bias_(config.bias ? In(r, 2) : nullptr),
        c_(Out(r, 0)),
        packs_(config.pack_b),
        version_(r.state_version) {}

  void Run() override {
    if (packs_ && packed_version_ != *version_) {
      matmul_.PackB(b_);
      packed_version_ = *version_;
    }
    matmul_.Execute(a_, b_, bias_, c_);
  }

  int64_t held_bytes() const override { return matmul_.packed_bytes(); }

 private:
  MatmulF32 matmul_;
  const float *a_, *b_, *bias_;
  float* c_;
  bool packs_;
  const int64_t* version_;
  int64_t packed_version_ = -1;
};

std::unique_ptr<Kernel> Make(const KernelRequest& r, MatmulConfig config) {
  if (config.m == 0 || config.n == 0 || config.k == 0 || config.batch == 0) return nullptr;
  config.threads = r.call.threads;
  // A packed copy pays off only for few rows: with more, oneDNN's sgemm packs as it goes, as fast
  // (tests/runtime/kernels/kernels_bench.cc), and no second copy of the weights is held.
  constexpr int64_t kFewRows = 128;
  config.pack_b =
      config.batch == 1 && !config.transpose_a && config.m <= kFewRows && r.OperandIsState(1);
  return std::make_unique<MatmulKernel>(r, config);
}

std::unique_ptr<Kernel> MakeMatmul(const KernelRequest& r, bool nt, bool bias = false) {
  if (!AllF32(r)) return nullptr;
  const Shape &a = r.call.in[0].shape, &b = r.call.in[1].shape, &c = r.call.out[0].shape;
  size_t rank = a.size();
  if (rank < 2) return nullptr;
  MatmulConfig config;
  config.transpose_b = nt;
  config.bias = bias;
  config.k = a[rank - 1];
  config.n = c.back();
  if (b.size() == 2) {
    config.m = Product(a, 0, rank - 1);
    return Make(r, config);
  }
  config.m = a[rank - 2];
  config.batch = Product(a, 0, rank - 2);
  // Other broadcasts of the leading dims have no strided form.
  if (b.size() != rank || !std::equal(a.begin(), a.end() - 2, b.begin())) return nullptr;
  return Make(r, config);
}

std::unique_ptr<Kernel> MakeMatmulNN(const KernelRequest& r) { return MakeMatmul(r, false); }
std::unique_ptr<Kernel> MakeMatmulNT(const KernelRequest& r) { return MakeMatmul(r, true); }
std::unique_ptr<Kernel> MakeLinear(const KernelRequest& r) {
  return MakeMatmul(r, r.call.attrs->Bool("nt"), true);
}

std::unique_ptr<Kernel> MakeMatmulTN(const KernelRequest& r) {
  if (!AllF32(r)) return nullptr;
  const Shape &a = r.call.in[0].shape, &b = r.call.in[1].shape;
  size_t batch = static_cast<size_t>(r.call.attrs->Int("batch", 0));
  MatmulConfig config;
  config.transpose_a = true;
  config.batch = Product(a, 0, batch);
  config.k = Product(a, batch, a.size() - 1);
  config.m = a.back();
  config.n = b.back();
  return Make(r, config);
}

constexpr Binding kBindings[] = {{"matmul", MakeMatmulNN},
                                 {"matmul_nt", MakeMatmulNT},
                                 {"matmul_tn", MakeMatmulTN},
                                 {"linear", MakeLinear}};

}  // namespace

std::span<const Binding> MatmulBindings() { return kBindings; }

}  // namespace shardc::cpu
