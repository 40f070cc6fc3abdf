#include "runtime/cpu/kernels/matmul_rows.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
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

// Rows that are copied at a time, by all threads and by one at least; and rows of a sum that is
// kept in f32.
constexpr int64_t kMostRows = 1024, kFewRows = 64, kSumRows = 512;

thread_local Room room;

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// to[places[i]][j] = from[j][i] for i < rows, j < cols.
template <typename T>
void ScatterColumns(const T* from, int64_t ld, T* to, const int64_t* places, int64_t rows,
                    int64_t cols) {
  constexpr int64_t kBlock = 16;
  for (int64_t j0 = 0; j0 < cols; j0 += kBlock) {
    const int64_t j1 = std::min(j0 + kBlock, cols);
    for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
      for (int64_t i = i0; i < std::min(i0 + kBlock, rows); ++i) {
        for (int64_t j = j0; j < j1; ++j) to[places[i] * cols + j] = from[j * ld + i];
      }
    }
  }
}

}  // namespace

struct MatmulRows::State {
  // What one thread does at a time: some rows of a matrix, or with `sums` some of its columns.
  struct Task {
    MatmulRowsConfig::Matrix matrix;
    const int64_t* places;  // of chosen rows in the matrix
    int64_t rows;
    int64_t begin = 0, columns = 0;  // of A
  };

  MatmulRowsConfig config;
  Type type;
  int64_t size, result_size;
  int64_t most_rows, slice, ld;  // ld: of rows that are columns; no power of 2
  bool narrows;                  // sums of several products, which are rounded after the last
  int64_t right_at, sums_at, room_bytes;  // in what a thread has of the room, behind rows of A
  int64_t held_bytes = 0;
  dnnl::stream stream;
  dnnl::matmul first, further;  // the latter adds to what is there
  int64_t scratch_bytes = 0;    // of oneDNN, at the end of what a thread has
  std::vector<Task> tasks;
  bool has_run = false;  // whatever code it makes is made

  explicit State(const MatmulRowsConfig& c) : config(c) {
    type = c.bf16 ? Type::bf16 : Type::f32;
    size = c.bf16 ? 2 : 4;
    result_size = c.result_bf16 ? 2 : 4;
    most_rows = std::min(c.rows, std::max(kMostRows / c.threads, kFewRows));
    ld = most_rows + 16;
    narrows = c.sums && c.result_bf16 && c.rows > most_rows;
    slice = c.k;
    if (c.sums) {
      const auto matrices = static_cast<int64_t>(c.matrices.size());
      const int64_t slices = std::max<int64_t>(1, 2 * c.threads / matrices);
      slice = std::min(c.k, std::max((c.k / slices + 15) / 16 * 16, kFewRows));
      if (narrows) slice = std::min(slice, kSumRows);
    }
    right_at = Padded(most_rows * slice * size);
    const int64_t right =
        c.sums ? most_rows * size : (c.transpose_b ? ld : most_rows) * result_size;
    sums_at = right_at + Padded(right * c.n);
    room_bytes = sums_at + (narrows ? Padded(slice * c.n * 4) : 0);
  }

  struct Descs {
    memory::desc a, b, c;
  };
  // Of a product of so many rows and, for `sums`, columns. What there is of a transposed B is
  // multiplied by the rows as its columns: oneDNN would copy all of B to transpose it, which few
  // rows are not worth.
  Descs Of(int64_t rows, int64_t columns) const {
    const int64_t k = config.k, n = config.n;
    const Type result = config.result_bf16 && !narrows ? Type::bf16 : Type::f32;
    if (config.sums) {
      return {{{columns, rows}, type, memory::dims{1, slice}},
              {{rows, n}, type, memory::dims{n, 1}},
              {{columns, n}, result, memory::dims{n, 1}}};
    }
    if (config.transpose_b) {
      return {{{n, k}, type, memory::dims{k, 1}},
              {{k, rows}, type, memory::dims{1, k}},
              {{n, rows}, result, memory::dims{ld, 1}}};
    }
    return {{{rows, k}, type, memory::dims{k, 1}},
            {{k, n}, type, memory::dims{n, 1}},
            {{rows, n}, result, memory::dims{n, 1}}};
  }

  // False where there is only one that is no faster than the reference kernel.
  bool MakePrimitives() {
    CheckRoomForCode();
    omp_set_num_threads(1);
    stream = dnnl::stream(CpuEngine());
    const Descs any = Of(DNNL_RUNTIME_DIM_VAL, DNNL_RUNTIME_DIM_VAL);
    auto make = [&](bool adds) {
      dnnl::primitive_attr attr;
      attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);  // several threads run it at once
      dnnl::post_ops post;
      if (adds) post.append_sum(1.0F);
      attr.set_post_ops(post);
      auto desc = MatmulDesc(any.a, any.b, nullptr, any.c, attr);
      scratch_bytes =
          std::max(scratch_bytes, Padded(static_cast<int64_t>(desc.scratchpad_desc().get_size())));
      return desc;
    };
    const auto desc = make(false);
    first = dnnl::matmul(desc);
    if (config.accumulate || (config.sums && config.rows > most_rows))
      further = dnnl::matmul(make(true));
    room_bytes += scratch_bytes;
    const int64_t places = static_cast<int64_t>(config.matrices.size()) * config.rows;
    held_bytes = room.Reserve(static_cast<size_t>(room_bytes * config.threads + 8 * places));
    return std::string(desc.impl_info_str()).find("ref") == std::string::npos;
  }

  void Multiply(const Descs& descs, const dnnl::matmul& product, const std::byte* a,
                const std::byte* b, std::byte* c, std::byte* scratch) const {
    auto at = [](const memory::desc& desc, const std::byte* data) {
      return memory(desc, CpuEngine(), const_cast<std::byte*>(data));
    };
    const memory::desc bytes({scratch_bytes}, Type::u8, memory::dims{1});
    product.execute(stream, {{DNNL_ARG_SRC, at(descs.a, a)},
                             {DNNL_ARG_WEIGHTS, at(descs.b, b)},
                             {DNNL_ARG_DST, at(descs.c, c)},
                             {DNNL_ARG_SCRATCHPAD, at(bytes, scratch)}});
  }

  // Some columns of rows of `length` elements.
  void Gather(const std::byte* from, int64_t length, const int64_t* rows, int64_t count,
              int64_t begin, int64_t columns, int64_t to_ld, std::byte* to) const {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + i * to_ld * size, from + (rows[i] * length + begin) * size,
                  static_cast<size_t>(columns * size));
    }
  }

  void Scatter(const std::byte* from, const int64_t* rows, int64_t count, std::byte* to) const {
    auto columns = [&](auto element) {
      using T = decltype(element);
      ScatterColumns(reinterpret_cast<const T*>(from), ld, reinterpret_cast<T*>(to), rows, count,
                     config.n);
    };
    if (config.transpose_b) return config.result_bf16 ? columns(uint16_t{}) : columns(float{});
    const int64_t bytes = config.n * result_size;
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + rows[i] * bytes, from + i * bytes, static_cast<size_t>(bytes));
    }
  }

  void Run(const Task& t, const std::byte* a, const std::byte* b, std::byte* c,
           std::byte* mine) const {
    a += t.matrix.a, b += t.matrix.b, c += t.matrix.c;
    std::byte *left = mine, *right = mine + right_at, *scratch = mine + room_bytes - scratch_bytes;
    if (!config.sums) {
      Gather(a, config.k, t.places, t.rows, 0, config.k, config.k, left);
      const Descs descs = Of(t.rows, 0);
      if (config.transpose_b) {
        Multiply(descs, first, b, left, right, scratch);
      } else {
        Multiply(descs, first, left, b, right, scratch);
      }
      return Scatter(right, t.places, t.rows, c);
    }
    c += t.begin * config.n * result_size;
    const int64_t elements = t.columns * config.n;
    if (t.rows == 0) {
      if (!config.accumulate) std::memset(c, 0, static_cast<size_t>(elements * result_size));
      return;
    }
    std::byte* sums = narrows ? mine + sums_at : c;
    if (narrows && config.accumulate) {
      Kernels().cast.bf16_to_f32(reinterpret_cast<const uint16_t*>(c),
                                 reinterpret_cast<float*>(sums), elements, 1);
    }
    for (int64_t begin = 0; begin < t.rows; begin += most_rows) {
      const int64_t rows = std::min(most_rows, t.rows - begin);
      Gather(a, config.k, t.places + begin, rows, t.begin, t.columns, slice, left);
      Gather(b, config.n, t.places + begin, rows, 0, config.n, config.n, right);
      const bool adds = begin > 0 || config.accumulate;
      Multiply(Of(rows, t.columns), adds ? further : first, left, right, sums, scratch);
    }
    if (narrows) {
      Kernels().cast.f32_to_bf16(reinterpret_cast<const float*>(sums),
                                 reinterpret_cast<uint16_t*>(c), elements, 1);
    }
  }

  // Notes where the chosen rows of each matrix are from `places` on.
  void FindTasks(const uint8_t* chosen, int64_t* places) {
    tasks.clear();
    for (const MatmulRowsConfig::Matrix& matrix : config.matrices) {
      const int64_t* mine = places;
      for (int64_t i = 0; i < config.rows; ++i) {
        if (*chosen++ != 0) *places++ = i;
      }
      const int64_t count = places - mine;
      if (config.sums) {
        for (int64_t k = 0; k < config.k; k += slice) {
          tasks.push_back({matrix, mine, count, k, std::min(slice, config.k - k)});
        }
      } else {
        for (int64_t i = 0; i < count; i += most_rows) {
          tasks.push_back({matrix, mine + i, std::min(most_rows, count - i)});
        }
      }
    }
  }

  void ClearOthers(const uint8_t* chosen, std::byte* c) const {
    const int64_t bytes = config.n * result_size, grain = 1 + (32 << 10) / bytes;
    const auto matrices = static_cast<int64_t>(config.matrices.size());
    ParallelFor(config.threads, matrices * config.rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (chosen[i] != 0) continue;
        std::memset(c + config.matrices[i / config.rows].c + i % config.rows * bytes, 0,
                    static_cast<size_t>(bytes));
      }
    });
  }

  void RunAll(const uint8_t* chosen, const std::byte* a, const std::byte* b, std::byte* c) {
    if (!std::exchange(has_run, true)) CheckRoomForCode();
    auto* const all = static_cast<std::byte*>(room.data());  // not that of another thread
    FindTasks(chosen, reinterpret_cast<int64_t*>(all + room_bytes * config.threads));
    if (!config.sums) ClearOthers(chosen, c);
    // Which thread has which task decides nothing but the time.
    std::atomic<size_t> next = 0;
    std::atomic<int> status = dnnl_success;
    omp_set_num_threads(1);
    ParallelChunks(config.threads, config.threads, [&](int64_t chunk, int64_t) {
      std::byte* mine = all + chunk * room_bytes;
      for (size_t i = next++; i < tasks.size(); i = next++) {
        try {
          Run(tasks[i], a, b, c, mine);
        } catch (const dnnl::error& e) {
          status = e.status;
        }
      }
    });
    CheckMemory(static_cast<dnnl_status_t>(status.load()));
    if (status != dnnl_success) throw std::runtime_error("matmul_rows: a product of oneDNN failed");
  }
};

MatmulRows::MatmulRows(std::unique_ptr<State> state) : state_(std::move(state)) {}
MatmulRows::~MatmulRows() = default;

std::unique_ptr<MatmulRows> MatmulRows::Create(const MatmulRowsConfig& asked) try {
  if (asked.rows <= 0 || asked.n <= 0 || asked.k <= 0 || asked.matrices.empty()) return nullptr;
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

void MatmulRows::Execute(const uint8_t* chosen, const std::byte* a, const std::byte* b,
                         std::byte* c) {
  state_->RunAll(chosen, a, b, c);
}

}  // namespace shardc::cpu
