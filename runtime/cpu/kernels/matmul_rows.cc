#include "runtime/cpu/kernels/matmul_rows.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/cpu/kernels/dnnl_util.h"
#include "runtime/cpu/kernels/kernel_table.h"
#include "runtime/cpu/kernels/parallel.h"
#include "runtime/cpu/kernels/room.h"
#include "runtime/cpu/kernels/team_size.h"

namespace shardc::cpu {
namespace {

using dnnl::memory;
using Type = memory::data_type;

constexpr int64_t kMostRows = 1024;      // at a time
constexpr int64_t kLd = kMostRows + 16;  // of rows that are columns: no power of 2
constexpr int64_t kGrain = 32 << 10;     // bytes that are worth a thread

thread_local Room room;

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// to[i][j] = from[j * ld + i] for i < rows, j < cols, where to[i] begins at to + places[i] * cols.
template <typename T>
void ScatterColumns(const T* from, T* to, const int64_t* places, int64_t rows, int64_t cols) {
  constexpr int64_t kBlock = 16;
  for (int64_t j0 = 0; j0 < cols; j0 += kBlock) {
    const int64_t j1 = std::min(j0 + kBlock, cols);
    for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
      for (int64_t i = i0; i < std::min(i0 + kBlock, rows); ++i) {
        for (int64_t j = j0; j < j1; ++j) to[places[i] * cols + j] = from[j * kLd + i];
      }
    }
  }
}

}  // namespace

struct MatmulRows::State {
  MatmulRowsConfig config;
  Type type, result;  // of operands, and of what a product gives
  int64_t size, result_size, most_rows;
  int64_t right_at = 0, sums_at = 0, held_bytes = 0;  // in the room, behind rows of A
  bool narrows = false;  // sums of several products, which are rounded after the last
  dnnl::stream stream;
  dnnl::matmul first, further;  // the latter adds to what is there
  std::vector<int64_t> places;  // of the chosen rows
  bool has_run = false;         // whatever code it makes is made

  explicit State(const MatmulRowsConfig& c) : config(c) {
    type = c.bf16 ? Type::bf16 : Type::f32;
    most_rows = std::min(c.rows, kMostRows);
    narrows = c.sums && c.result_bf16 && c.rows > kMostRows;
    result = c.result_bf16 && !narrows ? Type::bf16 : Type::f32;
    size = c.bf16 ? 2 : 4;
    result_size = c.result_bf16 ? 2 : 4;
    right_at = Padded(most_rows * c.k * size);
    const int64_t right =
        c.sums ? most_rows * size : (c.transpose_b ? kLd : most_rows) * result_size;
    sums_at = right_at + Padded(right * c.n);
    held_bytes = room.Reserve(static_cast<size_t>(sums_at + (narrows ? c.k * c.n * 4 : 0)));
    places.reserve(static_cast<size_t>(c.rows));
  }

  struct Descs {
    memory::desc a, b, c;
  };
  // Of a product of so many rows. What there is of a transposed B is multiplied by the rows as its
  // columns: oneDNN would copy all of B to transpose it, which few rows are not worth.
  Descs Of(int64_t rows) const {
    const int64_t k = config.k, n = config.n;
    if (config.sums) {
      return {{{k, rows}, type, memory::dims{1, k}},
              {{rows, n}, type, memory::dims{n, 1}},
              {{k, n}, result, memory::dims{n, 1}}};
    }
    if (config.transpose_b) {
      return {{{n, k}, type, memory::dims{k, 1}},
              {{k, rows}, type, memory::dims{1, k}},
              {{n, rows}, result, memory::dims{kLd, 1}}};
    }
    return {{{rows, k}, type, memory::dims{k, 1}},
            {{k, n}, type, memory::dims{n, 1}},
            {{rows, n}, result, memory::dims{n, 1}}};
  }

  // Whether there is a kernel that is worth its while.
  bool MakePrimitives() {
    CheckRoomForCode();
    omp_set_num_threads(config.threads);
    stream = dnnl::stream(CpuEngine());
    const Descs any = Of(DNNL_RUNTIME_DIM_VAL);
    auto make = [&](bool adds) {
      dnnl::primitive_attr attr;
      dnnl::post_ops post;
      if (adds) post.append_sum(1.0F);
      attr.set_post_ops(post);
      return MatmulDesc(any.a, any.b, nullptr, any.c, attr);
    };
    const auto desc = make(false);
    first = dnnl::matmul(desc);
    if (config.sums && config.rows > kMostRows) further = dnnl::matmul(make(true));
    return std::string(desc.impl_info_str()).find("ref") == std::string::npos;
  }

  void Multiply(int64_t rows, const dnnl::matmul& product, const void* a, const void* b, void* c) {
    if (!std::exchange(has_run, true)) CheckRoomForCode();
    const Descs descs = Of(rows);
    auto at = [](const memory::desc& desc, const void* data) {
      return memory(desc, CpuEngine(), const_cast<void*>(data));
    };
    omp_set_num_threads(config.threads);
    product.execute(stream, {{DNNL_ARG_SRC, at(descs.a, a)},
                             {DNNL_ARG_WEIGHTS, at(descs.b, b)},
                             {DNNL_ARG_DST, at(descs.c, c)}});
    stream.wait();
  }

  // fn(begin, end) over `count` rows of so many bytes.
  template <typename Fn>
  void ForRows(int64_t count, int64_t row_bytes, const Fn& fn) const {
    ParallelFor(config.threads, count, 1 + kGrain / std::max<int64_t>(row_bytes, 1), fn);
  }

  void Gather(const void* from, const int64_t* rows, int64_t count, int64_t length,
              std::byte* to) const {
    const int64_t bytes = length * size;
    ForRows(count, bytes, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(to + i * bytes, static_cast<const std::byte*>(from) + rows[i] * bytes,
                    static_cast<size_t>(bytes));
      }
    });
  }

  void Scatter(const std::byte* from, const int64_t* rows, int64_t count, std::byte* to) const {
    const int64_t n = config.n, bytes = n * result_size;
    ForRows(count, bytes, [&](int64_t begin, int64_t end) {
      if (config.transpose_b) {
        auto scatter = [&](auto element) {
          using T = decltype(element);
          ScatterColumns(reinterpret_cast<const T*>(from) + begin, reinterpret_cast<T*>(to),
                         rows + begin, end - begin, n);
        };
        return config.result_bf16 ? scatter(uint16_t{}) : scatter(float{});
      }
      for (int64_t i = begin; i < end; ++i) {
        std::memcpy(to + rows[i] * bytes, from + i * bytes, static_cast<size_t>(bytes));
      }
    });
  }

  void ClearOthers(const uint8_t* chosen, std::byte* c) const {
    const int64_t bytes = config.n * result_size;
    ForRows(config.rows, bytes, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (chosen[i] == 0) std::memset(c + i * bytes, 0, static_cast<size_t>(bytes));
      }
    });
  }

  void Run(const uint8_t* chosen, const void* a, const void* b, std::byte* c) {
    places.clear();
    for (int64_t i = 0; i < config.rows; ++i) {
      if (chosen[i] != 0) places.push_back(i);
    }
    const auto count = static_cast<int64_t>(places.size());
    std::byte *left = static_cast<std::byte*>(room.data()), *right = left + right_at,
              *sums = narrows ? left + sums_at : c;
    if (!config.sums) ClearOthers(chosen, c);
    if (config.sums && count == 0) {
      std::memset(c, 0, static_cast<size_t>(config.k * config.n * result_size));
    }
    for (int64_t begin = 0; begin < count; begin += most_rows) {
      const int64_t rows = std::min(most_rows, count - begin);
      const int64_t* at = places.data() + begin;
      Gather(a, at, rows, config.k, left);
      if (config.sums) {
        Gather(b, at, rows, config.n, right);
        Multiply(rows, begin == 0 ? first : further, left, right, sums);
      } else if (config.transpose_b) {
        Multiply(rows, first, b, left, right);
        Scatter(right, at, rows, c);
      } else {
        Multiply(rows, first, left, b, right);
        Scatter(right, at, rows, c);
      }
    }
    if (narrows && count > 0) {
      Kernels().cast.f32_to_bf16(reinterpret_cast<const float*>(sums),
                                 reinterpret_cast<uint16_t*>(c), config.k * config.n,
                                 config.threads);
    }
  }
};

MatmulRows::MatmulRows(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatmulRows::~MatmulRows() = default;

std::unique_ptr<MatmulRows> MatmulRows::Create(const MatmulRowsConfig& asked) try {
  if (asked.rows <= 0 || asked.n <= 0 || asked.k <= 0) return nullptr;
  MatmulRowsConfig config = asked;
  config.threads = GrantedThreads(asked.threads);
  auto state = std::make_unique<State>(config);
  if (!state->MakePrimitives()) return nullptr;
  return std::unique_ptr<MatmulRows>(new MatmulRows(std::move(state)));
} catch (const dnnl::error& e) {
  CheckMemory(e.status);
  return nullptr;
}

int64_t MatmulRows::held_bytes() const { return state_->held_bytes; }

void MatmulRows::Execute(const uint8_t* chosen, const void* a, const void* b, void* c) try {
  state_->Run(chosen, a, b, static_cast<std::byte*>(c));
} catch (const dnnl::error& e) {
  CheckMemory(e.status);
  throw;
}

}  // namespace shardc::cpu
