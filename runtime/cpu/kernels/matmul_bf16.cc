#include "runtime/cpu/kernels/matmul_bf16.h"

#include <omp.h>

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <vector>

#include "oneapi/dnnl/dnnl.hpp"
#include "runtime/cpu/kernels/layout.h"
#include "runtime/cpu/kernels/room.h"

namespace shardc::cpu {
namespace {

using dnnl::memory;
using Type = memory::data_type;

const dnnl::engine& CpuEngine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::desc Dense(int64_t batch, int64_t rows, int64_t cols, bool transposed, Type type) {
  memory::dims dims = {rows, cols};
  memory::dims strides = transposed ? memory::dims{1, rows} : memory::dims{cols, 1};
  if (batch > 1) {
    dims.insert(dims.begin(), batch);
    strides.insert(strides.begin(), rows * cols);
  }
  return memory::desc(dims, type, strides);
}

// Copies of operands in another layout.
thread_local Room room_a, room_b;

// Part of the product: some rows of A, and some of the dim that is summed over.
struct Piece {
  int64_t rows = 0, depth = 0;
  bool adds = false;  // to what C holds
  dnnl::matmul primitive;
  memory a, b, bias, c;
  memory plain_b;  // what is packed to b
  dnnl::reorder pack_b;
  bool packs_b = false;
};

// The length of stretches of at most `most`, equal but for the last, that cover [0, n).
int64_t Stretch(int64_t n, int64_t most) {
  const int64_t pieces = (n + most - 1) / most;
  return (n + pieces - 1) / pieces;
}

}  // namespace

struct MatmulBf16::State {
  MatmulBf16Config config;
  dnnl::stream stream;
  std::string implementation;
  bool large = false, packs_a = false;
  int64_t rows = 0, depth = 0;  // of every piece but the last ones
  std::vector<Piece> pieces;    // one of each kind
  int64_t held_bytes = 0;

  explicit State(const MatmulBf16Config& c) : config(c), stream(CpuEngine()) {
    // Measured on a Xeon with AMX (oneDNN 2.6, bench_kernels). Packing B gains 3 to 9% and costs
    // 1%, also when it is done anew each time. A is transposed first, in pieces that stay in the
    // cache: 1.3 to 1.5 times as fast. Long sums are cut, or oneDNN streams B again for every few
    // rows: twice as fast. With few rows all of it would cost more than it gains.
    constexpr int64_t kFew = 256, kLongSum = 8192, kDepth = 4096, kPieceElements = 8 << 20;
    large = c.batch == 1 && c.m >= kFew;
    packs_a = large && c.transpose_a;
    depth = large && c.result_f32 && c.k > kLongSum ? Stretch(c.k, kDepth) : c.k;
    rows = packs_a ? Stretch(c.m, std::max(kFew, kPieceElements / depth)) : c.m;
    for (int64_t at = 0; at < c.k; at += depth) {
      for (int64_t row = 0; row < c.m; row += rows) At(row, at);
    }
  }

  // A stored matrix or its transpose, or part of one.
  memory::desc Part(int64_t r, int64_t c, int64_t all_r, int64_t all_c, bool transposed,
                    Type type = Type::bf16) const {
    if (config.batch > 1) return Dense(config.batch, r, c, transposed, type);
    return memory::desc({r, c}, type, transposed ? memory::dims{1, all_r} : memory::dims{all_c, 1});
  }

  // Elements from one row of the packed A to the next: not a power of two, whose rows would compete
  // for the same places in the cache.
  static int64_t PackedRow(int64_t d) { return (d + 31) / 32 * 32 + 32; }

  Piece& At(int64_t row, int64_t at) {
    const int64_t r = std::min(rows, config.m - row), d = std::min(depth, config.k - at);
    const bool adds = config.accumulate || at > 0;
    for (Piece& p : pieces) {
      if (p.rows == r && p.depth == d && p.adds == adds) return p;
    }
    pieces.push_back(Make(r, d, adds));
    return pieces.back();
  }

  Piece Make(int64_t r, int64_t d, bool adds) {
    const dnnl::engine& engine = CpuEngine();
    Piece p;
    p.rows = r, p.depth = d, p.adds = adds;
    const memory::desc a_desc = packs_a ? memory::desc({r, d}, Type::bf16, {PackedRow(d), 1})
                                        : Part(r, d, config.m, config.k, config.transpose_a);
    const memory::desc plain_b = Part(d, config.n, config.k, config.n, config.transpose_b);
    const memory::desc c_desc =
        Part(r, config.n, config.m, config.n, false, config.result_f32 ? Type::f32 : Type::bf16);
    const memory::desc bias_desc =
        Dense(1, 1, config.n, false, config.bias_f32 ? Type::f32 : Type::bf16);
    memory::desc b_desc = plain_b;
    if (large) {
      b_desc = memory::desc({d, config.n}, Type::bf16, memory::format_tag::any);
      // All rows read B as it was packed for the first ones.
      for (const Piece& other : pieces) {
        if (other.depth == d) b_desc = other.b.get_desc();
      }
    }
    dnnl::primitive_attr attr;
    dnnl::post_ops post;
    if (adds) post.append_sum(1.0F);
    attr.set_post_ops(post);
    const dnnl::matmul::desc desc = config.bias && !adds
                                        ? dnnl::matmul::desc(a_desc, b_desc, bias_desc, c_desc)
                                        : dnnl::matmul::desc(a_desc, b_desc, c_desc);
    const dnnl::matmul::primitive_desc pd(desc, attr, engine);
    implementation = pd.impl_info_str();
    p.primitive = dnnl::matmul(pd);
    p.a = memory(a_desc, engine, nullptr);
    p.b = memory(pd.weights_desc(), engine, nullptr);
    p.c = memory(c_desc, engine, nullptr);
    if (config.bias) p.bias = memory(bias_desc, engine, nullptr);
    p.plain_b = memory(plain_b, engine, nullptr);
    p.packs_b = pd.weights_desc() != plain_b;
    if (p.packs_b) {
      p.pack_b = dnnl::reorder(p.plain_b, p.b);
      held_bytes += room_b.Reserve(pd.weights_desc().get_size());
    }
    if (packs_a) held_bytes += room_a.Reserve(a_desc.get_size());
    return p;
  }

  // Sets where the piece reads A from; packs it if need be.
  void SetA(Piece& p, int64_t row, int64_t at, const uint16_t* a) {
    if (packs_a) {
      const int64_t from[] = {1, config.m}, to[] = {PackedRow(p.depth), 1},
                    dims[] = {p.rows, p.depth};
      StridedCopy(a + at * config.m + row, from, room_a.data(), to, dims, 2, config.threads);
      p.a.set_data_handle(room_a.data());
    } else {  // all rows; the sum is cut only where A is not transposed
      p.a.set_data_handle(const_cast<uint16_t*>(a) + at);
    }
  }

  void SetB(Piece& p, int64_t row, int64_t at, const uint16_t* b) {
    auto* from = const_cast<uint16_t*>(b) + (config.transpose_b ? at : at * config.n);
    p.b.set_data_handle(p.packs_b ? room_b.data() : from);
    if (!p.packs_b || row > 0) return;
    p.plain_b.set_data_handle(from);
    p.pack_b.execute(stream, p.plain_b, p.b);
  }

  void Run(int64_t row, int64_t at, const void* a, const void* b, const void* bias, void* c) {
    Piece& p = At(row, at);
    SetB(p, row, at, static_cast<const uint16_t*>(b));
    SetA(p, row, at, static_cast<const uint16_t*>(a));
    p.c.set_data_handle(static_cast<char*>(c) + row * config.n * (config.result_f32 ? 4 : 2));
    std::unordered_map<int, memory> args = {
        {DNNL_ARG_SRC, p.a}, {DNNL_ARG_WEIGHTS, p.b}, {DNNL_ARG_DST, p.c}};
    if (config.bias && at == 0) {
      p.bias.set_data_handle(const_cast<void*>(bias));
      args.emplace(DNNL_ARG_BIAS, p.bias);
    }
    p.primitive.execute(stream, args);
  }
};

MatmulBf16::MatmulBf16(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatmulBf16::~MatmulBf16() = default;

std::unique_ptr<MatmulBf16> MatmulBf16::Create(const MatmulBf16Config& config) try {
  if (config.m <= 0 || config.n <= 0 || config.k <= 0 || config.batch <= 0) return nullptr;
  if (config.bias && (config.batch != 1 || config.accumulate)) return nullptr;
  omp_set_num_threads(config.threads);
  auto state = std::make_unique<State>(config);
  // oneDNN's scalar loops are no faster than the reference kernel.
  if (state->implementation.find("ref") != std::string::npos) return nullptr;
  return std::unique_ptr<MatmulBf16>(new MatmulBf16(std::move(state)));
} catch (const dnnl::error&) {
  return nullptr;
}

int64_t MatmulBf16::held_bytes() const { return state_->held_bytes; }
std::string MatmulBf16::implementation() const { return state_->implementation; }

void MatmulBf16::Execute(const void* a, const void* b, const void* bias, void* c) {
  State& s = *state_;
  omp_set_num_threads(s.config.threads);
  for (int64_t at = 0; at < s.config.k; at += s.depth) {
    for (int64_t row = 0; row < s.config.m; row += s.rows) s.Run(row, at, a, b, bias, c);
  }
  s.stream.wait();
}

}  // namespace shardc::cpu
