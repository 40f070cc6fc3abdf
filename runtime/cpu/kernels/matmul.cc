#include "runtime/cpu/kernels/matmul.h"

#include <omp.h>

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/cpu/kernels/dnnl_util.h"
#include "runtime/cpu/kernels/kernel_table.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/room.h"
#include "runtime/cpu/kernels/team_size.h"

namespace shardc::cpu {
namespace {

using dnnl::memory;

// A [rows, cols] operand that is stored, or stored transposed, with leading dimension ld.
memory::desc Operand(int64_t batch, int64_t rows, int64_t cols, bool transposed, int64_t ld) {
  memory::dims dims = {rows, cols};
  memory::dims strides = transposed ? memory::dims{1, ld} : memory::dims{ld, 1};
  if (batch > 1) {
    dims.insert(dims.begin(), batch);
    strides.insert(strides.begin(), ld * (transposed ? cols : rows));
  }
  return memory::desc(dims, memory::data_type::f32, strides);
}

int64_t LdA(const MatmulConfig& c) { return c.lda != 0 ? c.lda : c.transpose_a ? c.m : c.k; }
int64_t LdB(const MatmulConfig& c) { return c.transpose_b ? c.k : c.n; }
int64_t LdC(const MatmulConfig& c) { return c.ldc != 0 ? c.ldc : c.n; }

// Broadcasts over batch and rows.
memory::desc BiasOf(const MatmulConfig& c) {
  memory::dims dims = {1, c.n}, strides = {c.n, 1};
  if (c.batch > 1) {
    dims.insert(dims.begin(), 1);
    strides.insert(strides.begin(), c.n);
  }
  return memory::desc(dims, memory::data_type::f32, strides);
}

void Check(const MatmulConfig& c) {
  if (c.m < 0 || c.n < 0 || c.k < 0 || c.batch < 0) {
    throw std::invalid_argument("matmul: negative size");
  }
  if (c.accumulate && c.bias) {
    throw std::invalid_argument("matmul: accumulate excludes a bias");
  }
  if (c.pack_b && c.batch != 1) {
    throw std::invalid_argument("matmul: pack_b needs batch == 1");
  }
}

// Writes the bias, or zeros.
void StartWithBias(const MatmulConfig& c, const float* bias, float* out) {
  ParallelFor(c.threads, c.m, 1 + 16384 / c.n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = out + r * LdC(c);
      if (bias == nullptr) {
        std::fill(row, row + c.n, 0.0F);
      } else {
        std::copy(bias, bias + c.n, row);
      }
    }
  });
}

void ExecuteSgemm(const MatmulConfig& c, const float* a, const float* b, const float* bias,
                  float* out) {
  omp_set_num_threads(c.threads);
  const float* start = c.bias ? bias : nullptr;
  if (c.k == 0) {
    for (int64_t i = 0; i < c.batch && !c.accumulate; ++i) {
      StartWithBias(c, start, out + i * c.m * LdC(c));
    }
    return;
  }
  if (start != nullptr) StartWithBias(c, start, out);
  const float beta = c.accumulate || start != nullptr ? 1.0F : 0.0F;
  const dnnl_status_t status = dnnl_sgemm(c.transpose_a ? 'T' : 'N', c.transpose_b ? 'T' : 'N', c.m,
                                          c.n, c.k, 1.0F, a, LdA(c), b, LdB(c), beta, out, LdC(c));
  CheckMemory(status);
  if (status != dnnl_success) throw std::runtime_error("matmul: dnnl_sgemm failed");
}

// Whether a product takes less time with product.h: splitting the operands, B above all, costs what
// many rows and columns must win. Measured on a Xeon with AMX: at these sizes about as fast as
// sgemm (0.85 to 1.2 times), above them up to 1.7 times.
bool OnTiles(const MatmulConfig& c) {
  constexpr int64_t kRows = 160, kColumns = 128, kDepth = 64;
  return Kernels().product.f32 != nullptr && !c.pack_b && c.m >= kRows && c.n >= kColumns &&
         c.k >= kDepth;
}

// A product of so few rows reads B, and that is all: packing it gains nothing.
bool OfVeryFewRows(const MatmulConfig& c) {
  return c.m <= (c.transpose_b ? 1 : RowProductArgs::kMaxRows) && c.batch == 1 && !c.transpose_a;
}

ProductArgsOf<float> TileArgs(const MatmulConfig& c, const float* a, const float* b,
                              const float* bias, float* out) {
  ProductArgsOf<float> args{.m = c.m, .n = c.n, .k = c.k, .batch = c.batch, .a = a, .b = b};
  args.transpose_a = c.transpose_a;
  args.transpose_b = c.transpose_b;
  args.lda = LdA(c);
  args.ldb = LdB(c);
  args.ldc = LdC(c);
  args.batch_stride_a = args.lda * (c.transpose_a ? c.k : c.m);
  args.batch_stride_b = c.k * c.n;
  args.batch_stride_c = args.ldc * c.m;
  args.bias = c.bias ? bias : nullptr;
  args.c = out;
  args.accumulate = c.accumulate;
  return args;
}

thread_local Room tile_room;

}  // namespace

void MakeSgemm() {
  static std::mutex mutex;
  static bool made = false;
  std::lock_guard lock(mutex);
  if (made) return;
  CheckRoomForCode();
  constexpr int64_t kSize = 128;
  omp_set_num_threads(1);  // glibc may try for a moment what memory another thread could have
  std::vector<float> a(kSize * kSize), c(kSize * kSize);
  for (const char of_a : {'N', 'T'}) {
    for (const char of_b : {'N', 'T'}) {
      for (const float beta : {0.0F, 1.0F}) {
        CheckMemory(dnnl_sgemm(of_a, of_b, kSize, kSize, kSize, 1.0F, a.data(), kSize, a.data(),
                               kSize, beta, c.data(), kSize));
      }
    }
  }
  made = true;
}

struct MatmulF32::State {
  void MakePrimitive();

  MatmulConfig config;
  bool on_tiles = false;
  bool very_few = false;
  bool use_sgemm = false;  // else, and unless one of the two above, the primitive
  int64_t room_bytes = 0;
  dnnl::matmul primitive;
  std::string implementation;
  memory::desc plain_b_desc;
  memory a, b, bias, c;
  memory packed_b;
  dnnl::reorder pack;
  bool packs = false;
  bool packed = false;
  bool has_run = false;  // whatever code it makes is made
  dnnl::stream stream;
};

void MatmulF32::State::MakePrimitive() {
  CheckRoomForCode();
  omp_set_num_threads(config.threads);
  const dnnl::engine& engine = CpuEngine();
  stream = dnnl::stream(engine);
  const memory::desc a_desc =
      Operand(config.batch, config.m, config.k, config.transpose_a, LdA(config));
  plain_b_desc = Operand(config.batch, config.k, config.n, config.transpose_b, LdB(config));
  const memory::desc c_desc = Operand(config.batch, config.m, config.n, false, LdC(config));
  memory::desc b_desc = plain_b_desc;
  if (config.pack_b) {
    b_desc = memory::desc({config.k, config.n}, memory::data_type::f32, memory::format_tag::any);
  }
  const memory::desc bias_desc = BiasOf(config);
  dnnl::primitive_attr attr;
  dnnl::post_ops post;
  if (config.accumulate) post.append_sum(1.0F);
  attr.set_post_ops(post);
  const dnnl::matmul::primitive_desc pd =
      MatmulDesc(a_desc, b_desc, config.bias ? &bias_desc : nullptr, c_desc, attr);
  implementation = pd.impl_info_str();
  primitive = dnnl::matmul(pd);
  a = memory(a_desc, engine, nullptr);
  b = memory(plain_b_desc, engine, nullptr);
  c = memory(c_desc, engine, nullptr);
  if (config.bias) bias = memory(bias_desc, engine, nullptr);
  packs = config.pack_b && pd.weights_desc() != plain_b_desc;
  if (packs) {
    packed_b = memory(pd.weights_desc(), engine);
    pack = dnnl::reorder(b, packed_b);
  }
}

MatmulF32::MatmulF32(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatmulF32::MatmulF32(MatmulF32&&) noexcept = default;
MatmulF32& MatmulF32::operator=(MatmulF32&&) noexcept = default;
MatmulF32::~MatmulF32() = default;

MatmulF32 MatmulF32::Create(const MatmulConfig& asked) try {
  Check(asked);
  auto state = std::make_unique<State>();
  State& s = *state;
  s.config = asked;
  s.config.threads = GrantedThreads(asked.threads);
  const MatmulConfig& config = s.config;
  if (config.m == 0 || config.n == 0 || config.batch == 0) return MatmulF32(std::move(state));
  if (OnTiles(config)) {
    s.on_tiles = true;
    s.implementation = "amx:3xbf16";
    const int64_t bytes = Kernels().product.work_bytes(config.m, config.n, config.k, config.batch,
                                                       3, false, config.threads);
    s.room_bytes = tile_room.Reserve(static_cast<size_t>(bytes));
    return MatmulF32(std::move(state));
  }
  if (OfVeryFewRows(config)) {
    s.very_few = true;
    s.implementation = "few rows";
    return MatmulF32(std::move(state));
  }
  // Measured (Zen 5, oneDNN 2.6): on plain operands sgemm beats the primitive by up to 1.6x and
  // equals it on a packed B. The primitive stays for packed weights and batches. sgemm also takes
  // k == 0.
  s.use_sgemm = config.k == 0 || (config.batch == 1 && !config.pack_b);
  if (s.use_sgemm) {
    s.implementation = "sgemm";
    return MatmulF32(std::move(state));
  }
  s.MakePrimitive();
  return MatmulF32(std::move(state));
} catch (const dnnl::error& e) {
  CheckMemory(e.status);
  throw std::runtime_error("matmul " + std::to_string(asked.m) + "x" + std::to_string(asked.n) +
                           "x" + std::to_string(asked.k) + ": oneDNN: " + e.what());
}

void MatmulF32::PackB(const float* b) try {
  State& s = *state_;
  if (!s.packs) return;
  if (!s.packed) CheckRoomForCode();
  omp_set_num_threads(s.config.threads);
  s.b.set_data_handle(const_cast<float*>(b));
  s.pack.execute(s.stream, s.b, s.packed_b);
  s.stream.wait();
  s.packed = true;
} catch (const dnnl::error& e) {
  CheckMemory(e.status);
  throw;
}

int64_t MatmulF32::held_bytes() const {
  const State& s = *state_;
  return s.room_bytes + (s.packs ? static_cast<int64_t>(s.packed_b.get_desc().get_size()) : 0);
}

std::string MatmulF32::implementation() const { return state_->implementation; }

void MatmulF32::Execute(const float* a, const float* b, const float* bias, float* c) const try {
  State& s = *state_;
  if (s.config.m == 0 || s.config.n == 0 || s.config.batch == 0) return;
  if (s.on_tiles) {
    return Kernels().product.f32(TileArgs(s.config, a, b, bias, c), tile_room.data(),
                                 s.config.threads);
  }
  if (s.very_few) {
    const MatmulConfig& x = s.config;
    return Kernels().row_product.run({.m = x.m,
                                      .n = x.n,
                                      .k = x.k,
                                      .lda = LdA(x),
                                      .ldb = LdB(x),
                                      .ldc = LdC(x),
                                      .transpose_b = x.transpose_b,
                                      .a = a,
                                      .b = b,
                                      .bias = x.bias ? bias : nullptr,
                                      .c = c,
                                      .accumulate = x.accumulate},
                                     x.threads);
  }
  if (!std::exchange(s.has_run, true)) CheckRoomForCode();
  if (s.use_sgemm) return ExecuteSgemm(s.config, a, b, bias, c);
  if (s.packs && !s.packed) throw std::logic_error("matmul: Execute before PackB");
  omp_set_num_threads(s.config.threads);
  s.a.set_data_handle(const_cast<float*>(a));
  s.c.set_data_handle(c);
  std::unordered_map<int, memory> args = {{DNNL_ARG_SRC, s.a}, {DNNL_ARG_DST, s.c}};
  if (s.packs) {
    args.emplace(DNNL_ARG_WEIGHTS, s.packed_b);
  } else {
    s.b.set_data_handle(const_cast<float*>(b));
    args.emplace(DNNL_ARG_WEIGHTS, s.b);
  }
  if (s.config.bias) {
    s.bias.set_data_handle(const_cast<float*>(bias));
    args.emplace(DNNL_ARG_BIAS, s.bias);
  }
  s.primitive.execute(s.stream, args);
  s.stream.wait();
} catch (const dnnl::error& e) {
  CheckMemory(e.status);
  throw;
}

}  // namespace shardc::cpu
