#include "runtime/cpu/kernels/matmul_bf16.h"

#include <omp.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/cpu/kernels/dnnl_util.h"
#include "runtime/cpu/kernels/kernel_table.h"
#include "runtime/cpu/kernels/room.h"
#include "runtime/cpu/kernels/team_size.h"

namespace shardc::cpu {
namespace {

using dnnl::memory;
using Type = memory::data_type;

// `rows` x `cols` of each matrix, with `ld` elements from one stored row to the next.
memory::desc Matrices(int64_t batch, int64_t rows, int64_t cols, bool transposed, int64_t ld,
                      Type type) {
  memory::dims dims = {rows, cols};
  memory::dims strides = transposed ? memory::dims{1, ld} : memory::dims{ld, 1};
  if (batch > 1) {
    dims.insert(dims.begin(), batch);
    strides.insert(strides.begin(), (transposed ? cols : rows) * ld);
  }
  return memory::desc(dims, type, strides);
}

int64_t LdA(const MatmulBf16Config& c) {
  if (c.lda > 0) return c.lda;
  return c.transpose_a ? c.m : c.k;
}
int64_t LdC(const MatmulBf16Config& c) { return c.ldc > 0 ? c.ldc : c.n; }

// For packed operands.
thread_local Room room;

// Whether a product takes less time with product.h. Measured on a Xeon with AMX (oneDNN 2.6,
// bench_kernels and whole steps): where A is transposed, the sum is long or B is large, it is 1.1
// to 2.1 times as fast, up to 1.9 times slower elsewhere. A large B is not copied as a whole
// either.
bool OnTiles(const MatmulBf16Config& c) {
  constexpr int64_t kRows = 160, kColumns = 128, kDepth = 64, kLongSum = 2048, kLargeB = 8 << 20;
  return Kernels().product.bf16 != nullptr && c.m >= kRows && c.n >= kColumns && c.k >= kDepth &&
         (c.transpose_a || c.k >= kLongSum || c.k * c.n >= kLargeB);
}

ProductArgsOf<uint16_t> TileArgs(const MatmulBf16Config& c, const void* a, const void* b,
                                 const void* bias, void* out) {
  ProductArgsOf<uint16_t> args{.m = c.m, .n = c.n, .k = c.k, .batch = c.batch};
  args.a = static_cast<const uint16_t*>(a);
  args.b = static_cast<const uint16_t*>(b);
  args.transpose_a = c.transpose_a;
  args.transpose_b = c.transpose_b;
  args.lda = LdA(c);
  args.ldb = c.transpose_b ? c.k : c.n;
  args.ldc = LdC(c);
  args.batch_stride_a = (c.transpose_a ? c.k : c.m) * args.lda;
  args.batch_stride_b = c.k * c.n;
  args.batch_stride_c = c.m * args.ldc;
  if (c.bias && c.bias_f32) args.bias = static_cast<const float*>(bias);
  if (c.bias && !c.bias_f32) args.bias_bf16 = static_cast<const uint16_t*>(bias);
  if (c.result_f32) {
    args.c = static_cast<float*>(out);
  } else {
    args.c_bf16 = static_cast<uint16_t*>(out);
  }
  args.accumulate = c.accumulate;
  return args;
}

}  // namespace

struct MatmulBf16::State {
  MatmulBf16Config config;
  std::string implementation;
  int64_t held_bytes = 0;
  bool on_tiles = false;  // else all that follows
  dnnl::stream stream;
  dnnl::matmul primitive;
  memory a, b, bias, c;
  memory plain_b;  // what is packed to b
  dnnl::reorder pack_b;
  bool packs_b = false;
  bool has_run = false;  // whatever code it makes is made

  explicit State(const MatmulBf16Config& c) : config(c) {
    if (OnTiles(c)) {
      on_tiles = true;
      implementation = "amx";
      held_bytes = Reserve(
          Kernels().product.work_bytes(c.m, c.n, c.k, c.batch, 1, !c.result_f32, c.threads));
    } else {
      MakePrimitive();
    }
  }

  static int64_t Reserve(int64_t bytes) { return room.Reserve(static_cast<size_t>(bytes)); }

  void MakePrimitive() {
    CheckRoomForCode();
    const dnnl::engine& engine = CpuEngine();
    stream = dnnl::stream(engine);
    const Type result = config.result_f32 ? Type::f32 : Type::bf16;
    const memory::desc a_desc =
        Matrices(config.batch, config.m, config.k, config.transpose_a, LdA(config), Type::bf16);
    const memory::desc plain = Matrices(config.batch, config.k, config.n, config.transpose_b,
                                        config.transpose_b ? config.k : config.n, Type::bf16);
    const memory::desc c_desc =
        Matrices(config.batch, config.m, config.n, false, LdC(config), result);
    const memory::desc bias_desc =
        Matrices(1, 1, config.n, false, config.n, config.bias_f32 ? Type::f32 : Type::bf16);
    // Measured: packing B gains 3 to 9% and costs 1%, also when it is done anew each time. With few
    // rows it would cost more than it gains.
    constexpr int64_t kFew = 256;
    const bool large = config.batch == 1 && config.m >= kFew;
    const memory::desc b_desc =
        large ? memory::desc({config.k, config.n}, Type::bf16, memory::format_tag::any) : plain;
    dnnl::primitive_attr attr;
    dnnl::post_ops post;
    if (config.accumulate) post.append_sum(1.0F);
    attr.set_post_ops(post);
    const dnnl::matmul::primitive_desc pd =
        MatmulDesc(a_desc, b_desc, config.bias ? &bias_desc : nullptr, c_desc, attr);
    implementation = pd.impl_info_str();
    primitive = dnnl::matmul(pd);
    a = memory(a_desc, engine, nullptr);
    b = memory(pd.weights_desc(), engine, nullptr);
    c = memory(c_desc, engine, nullptr);
    if (config.bias) bias = memory(bias_desc, engine, nullptr);
    plain_b = memory(plain, engine, nullptr);
    packs_b = pd.weights_desc() != plain;
    if (!packs_b) return;
    pack_b = dnnl::reorder(plain_b, b);
    held_bytes = Reserve(static_cast<int64_t>(pd.weights_desc().get_size()));
  }

  void Run(const void* from_a, const void* from_b, const void* from_bias, void* to) {
    if (!std::exchange(has_run, true)) CheckRoomForCode();
    a.set_data_handle(const_cast<void*>(from_a));
    c.set_data_handle(to);
    b.set_data_handle(packs_b ? room.data() : const_cast<void*>(from_b));
    if (packs_b) {
      plain_b.set_data_handle(const_cast<void*>(from_b));
      pack_b.execute(stream, plain_b, b);
    }
    std::unordered_map<int, memory> args = {
        {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
    if (config.bias) {
      bias.set_data_handle(const_cast<void*>(from_bias));
      args.emplace(DNNL_ARG_BIAS, bias);
    }
    primitive.execute(stream, args);
    stream.wait();
  }
};

MatmulBf16::MatmulBf16(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatmulBf16::~MatmulBf16() = default;

std::unique_ptr<MatmulBf16> MatmulBf16::Create(const MatmulBf16Config& asked) try {
  MatmulBf16Config config = asked;
  config.threads = GrantedThreads(asked.threads);
  if (config.m <= 0 || config.n <= 0 || config.k <= 0 || config.batch <= 0) return nullptr;
  if (config.bias && (config.batch != 1 || config.accumulate)) return nullptr;
  omp_set_num_threads(config.threads);
  auto state = std::make_unique<State>(config);
  // oneDNN's scalar loops are no faster than the reference kernel.
  if (state->implementation.find("ref") != std::string::npos) return nullptr;
  return std::unique_ptr<MatmulBf16>(new MatmulBf16(std::move(state)));
} catch (const dnnl::error& e) {
  CheckMemory(e.status);
  return nullptr;
}

int64_t MatmulBf16::held_bytes() const { return state_->held_bytes; }
std::string MatmulBf16::implementation() const { return state_->implementation; }

void MatmulBf16::Execute(const void* a, const void* b, const void* bias, void* c) try {
  State& s = *state_;
  if (s.on_tiles) {
    return Kernels().product.bf16(TileArgs(s.config, a, b, bias, c), room.data(), s.config.threads);
  }
  omp_set_num_threads(s.config.threads);
  s.Run(a, b, bias, c);
} catch (const dnnl::error& e) {
  CheckMemory(e.status);
  throw;
}

}  // namespace shardc::cpu
