#include "runtime/cpu/kernels/matmul_bf16.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
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
  // oneDNN's product of all columns of B, or of some.
  struct Piece {
    int64_t begin = 0;
    dnnl::matmul primitive;
    memory b, bias, c;
  };

  MatmulBf16Config config;
  std::string implementation;
  int64_t held_bytes = 0;
  bool on_tiles = false;  // else all that follows
  dnnl::stream stream;
  std::vector<Piece> pieces;
  memory a, scratch;
  memory plain_b;  // what is packed to the one piece's b
  dnnl::reorder pack_b;
  bool packs_b = false;
  int64_t scratch_at = 0;  // in the room, behind what is packed
  bool has_run = false;    // whatever code it makes is made

  explicit State(const MatmulBf16Config& c) : config(c) {
    if (OnTiles(c)) {
      on_tiles = true;
      implementation = "amx";
      held_bytes = Reserve(
          Kernels().product.work_bytes(c.m, c.n, c.k, c.batch, 1, !c.result_f32, c.threads));
    } else {
      MakePrimitives();
    }
  }

  static int64_t Reserve(int64_t bytes) { return room.Reserve(static_cast<size_t>(bytes)); }

  memory::desc PlainB(int64_t columns) const {
    return Matrices(config.batch, config.k, columns, config.transpose_b,
                    config.transpose_b ? config.k : config.n, Type::bf16);
  }

  dnnl::matmul::primitive_desc Product(int64_t columns, const memory::desc& b_desc) const {
    const memory::desc a_desc =
        Matrices(config.batch, config.m, config.k, config.transpose_a, LdA(config), Type::bf16);
    const memory::desc c_desc = Matrices(config.batch, config.m, columns, false, LdC(config),
                                         config.result_f32 ? Type::f32 : Type::bf16);
    const memory::desc bias_desc =
        Matrices(1, 1, columns, false, columns, config.bias_f32 ? Type::f32 : Type::bf16);
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::post_ops post;
    if (config.accumulate) post.append_sum(1.0F);
    attr.set_post_ops(post);
    return MatmulDesc(a_desc, b_desc, config.bias ? &bias_desc : nullptr, c_desc, attr);
  }

  // How many columns to take at once: where oneDNN keeps sums in f32 for all of C, about
  // kMostScratch of them.
  int64_t ColumnsAtOnce(int64_t scratch_bytes) const {
    constexpr int64_t kMostScratch = 32 << 20, kAtLeast = 512;
    if (config.batch > 1 || packs_b || scratch_bytes <= kMostScratch) return config.n;
    const int64_t pieces = (scratch_bytes + kMostScratch - 1) / kMostScratch;
    return std::min(config.n, std::max((config.n / pieces + 63) / 64 * 64, kAtLeast));
  }

  void MakePrimitives() {
    CheckRoomForCode();
    const dnnl::engine& engine = CpuEngine();
    stream = dnnl::stream(engine);
    const memory::desc plain = PlainB(config.n);
    dnnl::matmul::primitive_desc whole = Product(config.n, plain);
    // Measured: packing B for kernels that want blocks of it gains 3 to 9% and costs 1%, also when
    // it is done anew each time. With few rows it would cost more than it gains.
    constexpr int64_t kFew = 256;
    if (config.batch == 1 && config.m >= kFew) {
      const memory::desc any({config.k, config.n}, Type::bf16, memory::format_tag::any);
      const dnnl::matmul::primitive_desc packed = Product(config.n, any);
      packs_b = IsBlocked(packed.weights_desc());
      if (packs_b) whole = packed;
    }
    implementation = whole.impl_info_str();
    a = memory(whole.src_desc(), engine, nullptr);
    int64_t scratch_bytes = 0;
    auto add = [&](int64_t begin, const dnnl::matmul::primitive_desc& product) {
      scratch_bytes = std::max(scratch_bytes, ScratchBytes(product));
      auto of = [&](const memory::desc& desc) { return memory(desc, engine, nullptr); };
      pieces.push_back({begin, dnnl::matmul(product), of(product.weights_desc()),
                        config.bias ? of(product.bias_desc()) : memory(), of(product.dst_desc())});
    };
    const int64_t columns = ColumnsAtOnce(ScratchBytes(whole));
    for (int64_t i = 0; i < config.n; i += columns) {
      const int64_t n = std::min(columns, config.n - i);
      add(i, n == config.n ? whole : Product(n, PlainB(n)));
    }
    if (packs_b) {
      plain_b = memory(plain, engine, nullptr);
      pack_b = dnnl::reorder(plain_b, pieces[0].b);
      scratch_at = static_cast<int64_t>(whole.weights_desc().get_size() + 63) / 64 * 64;
    }
    scratch = memory({{scratch_bytes}, Type::u8, memory::dims{1}}, engine, nullptr);
    held_bytes = Reserve(scratch_at + scratch_bytes);
  }

  static int64_t ScratchBytes(const dnnl::matmul::primitive_desc& product) {
    return static_cast<int64_t>(product.scratchpad_desc().get_size());
  }

  // B in blocks, which is what there is a gain in packing it to.
  bool IsBlocked(const memory::desc& b) const {
    return b != Matrices(1, config.k, config.n, false, config.n, Type::bf16) &&
           b != Matrices(1, config.k, config.n, true, config.k, Type::bf16);
  }

  void Run(const void* from_a, const void* from_b, const void* from_bias, void* to) {
    if (!std::exchange(has_run, true)) CheckRoomForCode();
    a.set_data_handle(const_cast<void*>(from_a));
    auto* work = static_cast<std::byte*>(room.data());
    scratch.set_data_handle(work + scratch_at);
    if (packs_b) {
      plain_b.set_data_handle(const_cast<void*>(from_b));
      pieces[0].b.set_data_handle(work);
      pack_b.execute(stream, plain_b, pieces[0].b);
    }
    const int64_t b_step = (config.transpose_b ? config.k : 1) * int64_t{2};
    const int64_t c_step = config.result_f32 ? 4 : 2, bias_step = config.bias_f32 ? 4 : 2;
    auto at = [](const void* data, int64_t bytes) {
      return const_cast<std::byte*>(static_cast<const std::byte*>(data)) + bytes;
    };
    for (Piece& piece : pieces) {
      if (!packs_b) piece.b.set_data_handle(at(from_b, piece.begin * b_step));
      piece.c.set_data_handle(at(to, piece.begin * c_step));
      std::unordered_map<int, memory> args = {{DNNL_ARG_SRC, a},
                                              {DNNL_ARG_WEIGHTS, piece.b},
                                              {DNNL_ARG_DST, piece.c},
                                              {DNNL_ARG_SCRATCHPAD, scratch}};
      if (config.bias) {
        piece.bias.set_data_handle(at(from_bias, piece.begin * bias_step));
        args.emplace(DNNL_ARG_BIAS, piece.bias);
      }
      piece.primitive.execute(stream, args);
    }
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
