// dropout and random_uniform: what is drawn is made again from the element's place wherever it is
// needed.
#include <memory>

#include "runtime/cuda/kernels/draw.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

constexpr int kEach = 4;  // elements an item: those of a Philox block where places allow

// Where local elements lie in the whole tensor.
struct Places {
  // Per local row, -1 for padding; null: row r begins at first + r * stride.
  const int64_t* rows = nullptr;
  int64_t first = 0, stride = 0;
  // Per local column, -1 for padding; null: they are one after the other.
  const int64_t* columns = nullptr;
  __device__ int64_t Of(int64_t row, int64_t column) const {
    const int64_t begin = rows ? rows[row] : first + row * stride;
    const int64_t at = columns ? columns[column] : column;
    return begin < 0 || at < 0 ? -1 : begin + at;
  }
};

template <typename T>
struct Drop {
  using W = decltype(Widen(T()));
  const T* x;
  T* y;
  Draw draw;
  bool packed;
  int64_t width, items;  // of a row
  Places places;
  W scale;
  __device__ void operator()(int64_t item) const {
    const int64_t row = item / items, begin = item % items * kEach;
    const int64_t at = row * width + begin;
    const int count = width - begin < kEach ? static_cast<int>(width - begin) : kEach;
    const uint32_t now = draw.Step();
    T values[kEach];
    if (packed) {
      const auto pack = LoadPack<T, kEach>(x + at);
      for (int j = 0; j < kEach; ++j) values[j] = pack.v[j];
    } else {
      ForEach<kEach>(count, [&](int j) { values[j] = x[at + j]; });
    }
    PhiloxBlock words{};
    int64_t have = -1;
    ForEach<kEach>(count, [&](int j) {
      const int64_t i = places.Of(row, begin + j);
      if (i >= 0 && i / 4 != have) {
        have = i / 4;
        words = draw.Block(have, now);
      }
      const bool kept = i >= 0 && draw.Keeps(WordOf(words, static_cast<int>(i % 4)));
      values[j] = Narrow<T>(kept ? Widen(values[j]) * scale : W(0));
    });
    if (packed) {
      Pack<T, kEach> pack;
      for (int j = 0; j < kEach; ++j) pack.v[j] = values[j];
      StorePack<T, kEach>(y + at, pack);
    } else {
      ForEach<kEach>(count, [&](int j) { y[at + j] = values[j]; });
    }
  }
};

// Where all elements lie one after the other in the whole tensor, from a Philox block's first on:
// an item is a block.
template <typename T>
struct DropBlocks {
  using W = decltype(Widen(T()));
  const T* x;
  T* y;
  Draw draw;
  int64_t first;
  W scale;
  __device__ void operator()(int64_t item) const {
    const PhiloxBlock words = draw.Block(first + item, draw.Step());
    auto pack = LoadPack<T, kEach>(x + item * kEach);
    for (int j = 0; j < kEach; ++j) {
      pack.v[j] = Narrow<T>(draw.Keeps(words.word[j]) ? Widen(pack.v[j]) * scale : W(0));
    }
    StorePack<T, kEach>(y + item * kEach, pack);
  }
};

// One element an item: noise is a small part of what a model computes.
template <typename T>
struct Uniform {
  T* y;
  Draw draw;
  int64_t width;  // of a row
  Places places;
  __device__ void operator()(int64_t item) const {
    const int64_t i = places.Of(item / width, item % width);
    const uint32_t word =
        i < 0 ? 0 : WordOf(draw.Block(i / 4, draw.Step()), static_cast<int>(i % 4));
    y[item] = Narrow<T>(static_cast<decltype(Widen(T()))>(word >> 8) * 0x1p-24f);
  }
};

// Tables only where a few numbers do not say it.
struct PlaceTables {
  DeviceTable<int64_t> rows, columns;
  Places places;
};

std::shared_ptr<PlaceTables> TablesFor(const DropoutPlaces& from, int64_t width) {
  auto tables = std::make_shared<PlaceTables>();
  Places& places = tables->places;
  std::vector<int64_t> rows = from.rows;
  if (from.columns.size() == 1 && from.columns[0].size == width) {
    for (int64_t& row : rows) row += row < 0 ? 0 : from.columns[0].global;
  } else {
    std::vector<int64_t> columns(static_cast<size_t>(width), -1);
    for (const Run& run : from.columns) {
      for (int64_t j = 0; j < run.size; ++j) {
        columns[static_cast<size_t>(run.local + j)] = run.global + j;
      }
    }
    tables->columns = DeviceTable<int64_t>(columns);
    places.columns = tables->columns.data();
  }
  places.first = rows[0];
  places.stride = rows.size() > 1 ? rows[1] - rows[0] : 0;
  bool even = rows[0] >= 0;
  for (size_t r = 0; r < rows.size() && even; ++r) {
    even = rows[r] == places.first + static_cast<int64_t>(r) * places.stride;
  }
  if (!even) {
    tables->rows = DeviceTable<int64_t>(rows);
    places.rows = tables->rows.data();
  }
  return tables;
}

// x, step -> y
KernelPtr MakeDropout(const KernelRequest& r) {
  const TensorView& x = r.call.in[0];
  if (x.num_elements() == 0) return NoWork();
  const int64_t width = x.rank() == 0 ? 1 : x.shape.back();
  const DropoutMask mask = MaskOf(*r.call.attrs);
  auto tables = TablesFor(PlacesOf(r.call), width);
  return DispatchFloat(x.dtype, [&](auto t) -> KernelPtr {
    using T = decltype(t);
    Drop<T> f{};
    f.x = In<T>(r, 0);
    f.y = Out<T>(r, 0);
    f.draw = Draw(mask, r.call.in[1]);
    f.packed =
        width % kEach == 0 && Aligned(f.x, kEach * sizeof(T)) && Aligned(f.y, kEach * sizeof(T));
    f.width = width;
    f.items = CeilDiv(width, kEach);
    f.places = tables->places;
    f.scale = static_cast<typename Drop<T>::W>(mask.scale);
    const int64_t n = x.num_elements() / width * f.items;
    const Grid grid = ElementGrid(n);
    const Places& places = f.places;
    if (f.packed && !places.rows && !places.columns && places.first % kEach == 0 &&
        (places.stride == width || n == f.items)) {
      DropBlocks<T> blocks{f.x, f.y, f.draw, places.first / kEach, f.scale};
      return MakeKernel([blocks, n, grid](const Launch& launch) {
        LaunchKernel(launch, ElementsKernel<DropBlocks<T>>, grid.blocks, grid.threads, 0, blocks,
                     n);
      });
    }
    return MakeKernel([f, n, tables, grid](const Launch& launch) {
      LaunchKernel(launch, ElementsKernel<Drop<T>>, grid.blocks, grid.threads, 0, f, n);
    });
  });
}

// like, step -> y
KernelPtr MakeUniform(const KernelRequest& r) {
  const TensorView& y = r.call.out[0];
  const int64_t n = y.num_elements(), width = y.rank() == 0 ? 1 : y.shape.back();
  if (n == 0) return NoWork();
  auto tables = TablesFor(PlacesOf(r.call), width);
  const Draw draw(MaskOf(*r.call.attrs), r.call.in[1]);
  return DispatchFloat(y.dtype, [&](auto t) -> KernelPtr {
    using T = decltype(t);
    const Uniform<T> f{Out<T>(r, 0), draw, width, tables->places};
    const Grid grid = ElementGrid(n);
    return MakeKernel([f, n, tables, grid](const Launch& launch) {
      LaunchKernel(launch, ElementsKernel<Uniform<T>>, grid.blocks, grid.threads, 0, f, n);
    });
  });
}

constexpr Binding kBindings[] = {{"dropout", MakeDropout}, {"random_uniform", MakeUniform}};

}  // namespace

std::span<const Binding> DropoutBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
