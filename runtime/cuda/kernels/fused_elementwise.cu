// fused_elementwise: the program is interpreted per thread, on a few neighbouring elements at once.
// What a step has made is in registers, where the next finds it. Other values, which are found by
// number, are in shared memory: registers have no numbers, and local memory is slower.
#include "runtime/cuda/kernels/scalar_step.h"
#include "runtime/cuda/kernels/vector.h"

namespace shardc::cuda::SHARDC_KERNEL_SPACE {
namespace {

enum class Type : uint8_t { kSame, kBF16, kF16 };  // kSame: what is computed in

// How the elements of a pack lie in an operand: beside each other, all packs in the result's order
// (kDense) or in another, as one, or anyhow.
enum class Lie : uint8_t { kDense, kPacked, kSplat, kApart };

// Where a value is in shared memory.
constexpr int16_t kNowhere = -1;
struct Place {
  int16_t at = kNowhere;  // bytes of each thread before it
  Type type = Type::kSame;
};
struct Operand {
  const std::byte* data = nullptr;
  Place place;
  Lie lie = Lie::kDense;
  bool small = true;  // indices fit in 32 bits, whose division is fast
  int rank = 0;       // of what is left when dims that the operand walks alike are merged
  int64_t dims[kMaxDims] = {}, strides[kMaxDims] = {};
  template <typename Index>
  __device__ int64_t At(Index i) const {
    int64_t at = 0;
    SHARDC_UNROLL_BY(1)
    for (int d = rank - 1; d >= 0; --d) {
      const Index n = static_cast<Index>(dims[d]), q = d == 0 ? 0 : i / n;
      at += static_cast<int64_t>(i - q * n) * strides[d];
      i = q;
    }
    return at;
  }
  __device__ int64_t Offset(int64_t i) const {
    return small ? At(static_cast<uint32_t>(i)) : At(static_cast<uint64_t>(i));
  }
};
constexpr ScalarOp kNothing{kNumScalarOps};
// last = op(last, b, c), after last = a where a is somewhere.
struct Step {
  ScalarOp op = kNothing;
  int8_t result = -1;  // that `last` then is
  Place a, b, c;
  int16_t to = kNowhere;  // where later steps find it
};
struct Result {
  std::byte* data;  // dense
  Type type;
  bool packed;
};

template <typename W, typename Math>
struct Fused {
  // What is found out for an operand or a step takes longer than most steps: as many elements share
  // it as registers allow.
  static constexpr bool kHalves = std::is_same_v<Math, Fast>;
  static constexpr int kPacks = 2, kPer = kHalves ? 8 : kPack<W>, kN = kPacks * kPer;
  static constexpr int kBlocks = std::is_same_v<W, double> ? 2 : 4;  // of a multiprocessor
  using Lanes = Pack<W, kN>;
  static constexpr int64_t kShared = 48 << 10;       // what every GPU gives a block unasked
  int num_dense = 0, num_inputs = 0, num_steps = 0;  // the dense inputs come first
  int bytes = 0;                                     // of a thread's values in shared memory
  int64_t n = 0;
  Operand inputs[ScalarProgram::kMaxInputs] = {};
  Step steps[ScalarProgram::kMaxSteps + ScalarProgram::kMaxResults] = {};
  Result results[ScalarProgram::kMaxResults] = {};

  // Pack p of a thread's elements; those of neighbouring threads are beside each other. `first`:
  // that of pack 0, by number.
  static __device__ __forceinline__ int64_t Begin(int64_t first, int p) {
    return (first + p * static_cast<int64_t>(blockDim.x)) * kPer;
  }
  __device__ __forceinline__ bool Whole(int64_t begin) const { return begin + kPer <= n; }
  template <typename T>
  static __device__ __forceinline__ Pack<T, kPer> PackOf(const Pack<T, kN>& x, int p) {
    Pack<T, kPer> y;
    for (int j = 0; j < kPer; ++j) y.v[j] = x.v[p * kPer + j];
    return y;
  }

  // In shared memory too, in parts of 16 bytes where there are as many: so that they are in
  // different banks.
  template <typename T>
  using Part = Pack<uint32_t, kWords<kPer * sizeof(T)>>;
  template <typename T>
  using Parts = Pack<Part<T>, static_cast<int>(kPer * sizeof(T) / sizeof(Part<T>))>;
  template <typename T>
  struct NumParts : std::integral_constant<int, sizeof(Parts<T>) / sizeof(Part<T>)> {};
  template <typename T>
  static __device__ __forceinline__ Part<T>& PartOf(int at, int part) {
    return reinterpret_cast<Part<T>*>(
        SharedMemory() + static_cast<uint32_t>(at) *
                             blockDim.x)[static_cast<uint32_t>(part) * blockDim.x + threadIdx.x];
  }
  template <typename T>
  static __device__ __forceinline__ Pack<T, kPer> Get(int at, int p) {
    Parts<T> x;
    SHARDC_UNROLL
    for (int i = 0; i < NumParts<T>::value; ++i) x.v[i] = PartOf<T>(at, p * NumParts<T>::value + i);
    return BitCast<Pack<T, kPer>>(x);
  }
  template <typename T>
  static __device__ __forceinline__ void Set(int at, int p, const Pack<T, kPer>& pack) {
    const auto x = BitCast<Parts<T>>(pack);
    SHARDC_UNROLL
    for (int i = 0; i < NumParts<T>::value; ++i) PartOf<T>(at, p * NumParts<T>::value + i) = x.v[i];
  }
  template <typename T>
  static __device__ __forceinline__ Lanes GetAs(int at) {
    Lanes x;
    SHARDC_UNROLL
    for (int p = 0; p < kPacks; ++p) {
      const auto pack = WidenPack(Get<T>(at, p));
      for (int j = 0; j < kPer; ++j) x.v[p * kPer + j] = pack.v[j];
    }
    return x;
  }
  static __device__ __forceinline__ Lanes Get(Place place) {
    if constexpr (std::is_same_v<W, float>) {
      if (place.type == Type::kBF16) return GetAs<BF16>(place.at);
      if (place.type == Type::kF16) return GetAs<F16>(place.at);
    }
    return GetAs<W>(place.at);
  }

  // use(T()): an unsigned integer as large as the operand's elements, which stay as they are until
  // a step reads them.
  template <typename Use>
  static __device__ __forceinline__ void OfSize(const Operand& in, const Use& use) {
    if constexpr (std::is_same_v<W, double>) {
      use(uint64_t());
    } else if constexpr (kHalves) {
      use(uint16_t());
    } else if (in.place.type == Type::kSame) {
      use(uint32_t());
    } else {
      use(uint16_t());
    }
  }
  // Several are under way at once.
  __device__ __forceinline__ void ReadDense(int64_t first) const {
    constexpr int kAhead = 4;
    using Largest = Pack<std::conditional_t<kHalves, uint16_t, W>, kPer>;
    SHARDC_UNROLL_BY(1)
    for (int i = 0; i < num_dense; i += kAhead) {
      Pack<uint32_t, sizeof(Largest) / 4> ahead[kAhead][kPacks] = {};
      ForEach<kAhead>(num_dense - i, [&](int j) {
        const Operand& in = inputs[i + j];
        OfSize(in, [&]<typename T>(T) {
          for (int p = 0; p < kPacks; ++p) {
            const T* x = reinterpret_cast<const T*>(in.data) + Begin(first, p);
            const auto words = BitCast<Pack<uint32_t, kPer * sizeof(T) / 4>>(LoadPack<T, kPer>(x));
            for (auto w = 0u; w < sizeof(words) / 4; ++w) ahead[j][p].v[w] = words.v[w];
          }
        });
      });
      ForEach<kAhead>(num_dense - i, [&](int j) {
        const Operand& in = inputs[i + j];
        OfSize(in, [&]<typename T>(T) {
          for (int p = 0; p < kPacks; ++p) {
            Pack<uint32_t, kPer * sizeof(T) / 4> words;
            for (auto w = 0u; w < sizeof(words) / 4; ++w) words.v[w] = ahead[j][p].v[w];
            Set(in.place.at, p, BitCast<Pack<T, kPer>>(words));
          }
        });
      });
    }
  }
  // After the end, any numbers.
  __device__ __forceinline__ void Read(const Operand& in, int64_t first) const {
    OfSize(in, [&]<typename T>(T) {
      const T* x = reinterpret_cast<const T*>(in.data);
      auto whole = [&](int p) { return in.lie != Lie::kApart && Whole(Begin(first, p)); };
      Pack<T, kPer> packs[kPacks] = {};
      T ones[kPacks] = {};
      for (int p = 0; p < kPacks; ++p) {
        if (!whole(p)) continue;
        const T* pack = x + in.Offset(Begin(first, p));
        if (in.lie == Lie::kSplat) {
          ones[p] = *pack;
        } else {
          packs[p] = LoadPack<T, kPer>(pack);
        }
      }
      for (int p = 0; p < kPacks; ++p) {
        if (!whole(p)) {
          ReadApart<T>(in, first, p);
          continue;
        }
        if (in.lie == Lie::kSplat) {
          for (T& y : packs[p].v) y = ones[p];
        }
        Set(in.place.at, p, packs[p]);
      }
    });
  }
  template <typename T>
  __device__ void ReadApart(const Operand& in, int64_t first, int p) const {
    constexpr int kEach = kPer / NumParts<T>::value;
    const int64_t begin = Begin(first, p);
    SHARDC_UNROLL_BY(1)
    for (int j = 0; j < kPer && begin + j < n; ++j) {
      auto* part = &PartOf<T>(in.place.at, p * NumParts<T>::value + j / kEach);
      reinterpret_cast<T*>(part)[j % kEach] =
          reinterpret_cast<const T*>(in.data)[in.Offset(begin + j)];
    }
  }
  template <typename T>
  __device__ void Write(const Result& out, int64_t first, const Lanes& x) const {
    T* y = reinterpret_cast<T*>(out.data);
    for (int p = 0; p < kPacks; ++p) {
      const int64_t begin = Begin(first, p);
      if (out.packed && Whole(begin)) {
        StorePack(y + begin, NarrowPack<T>(PackOf(x, p)));
        continue;
      }
      for (int j = 0; j < kPer; ++j) {
        if (begin + j < n) y[begin + j] = Narrow<T>(x.v[p * kPer + j]);
      }
    }
  }

  __device__ void operator()(int64_t first) const {
    // Every operand is read before any result is written: one may lie over an operand.
    const bool whole = Whole(Begin(first, kPacks - 1));
    if (whole) ReadDense(first);
    SHARDC_UNROLL_BY(1)
    for (int i = whole ? num_dense : 0; i < num_inputs; ++i) Read(inputs[i], first);
    Lanes last{};
    for (int s = 0; s < num_steps; ++s) {
      const Step& step = steps[s];
      if (step.a.at != kNowhere) last = Get(step.a);
      last = step.b.at == kNowhere
                 ? Apply<Math>(step.op, last)
                 : Apply<Math>(step.op, last, Get(step.b), [&] { return Get(step.c); });
      if (step.to != kNowhere) {
        for (int p = 0; p < kPacks; ++p) Set(step.to, p, PackOf(last, p));
      }
      if (step.result < 0) continue;
      const Result& out = results[step.result];
      if constexpr (std::is_same_v<W, float>) {
        if (out.type == Type::kBF16) Write<BF16>(out, first, last);
        if (out.type == Type::kF16) Write<F16>(out, first, last);
      }
      if (out.type == Type::kSame && !kHalves) Write<W>(out, first, last);
    }
  }

  // Those of half a warp fit, however many values there are.
  static_assert((ScalarProgram::kMaxInputs + ScalarProgram::kMaxSteps) * kN * 16 * sizeof(W) <=
                kShared);
};

template <typename W>
bool TypeOf(DType dtype, Type* type) {
  constexpr bool kDouble = std::is_same_v<W, double>;
  *type = dtype == DType::kBF16 ? Type::kBF16 : dtype == DType::kF16 ? Type::kF16 : Type::kSame;
  return kDouble ? dtype == DType::kF64 : IsFloat(dtype) && dtype != DType::kF64;
}

// As many blocks as F::kBlocks make up for what loads and steps wait for.
template <typename F>
__global__ void __launch_bounds__(kElementThreads, F::kBlocks)
    FusedKernel(const __grid_constant__ F f, int64_t packs) {
  const int64_t block = static_cast<int64_t>(blockDim.x) * F::kPacks;
  for (int64_t i = blockIdx.x * block + threadIdx.x; i < packs; i += gridDim.x * block) f(i);
}

// Whether `value` is what the step before that of value `made` has made.
bool IsLast(const ScalarProgram& program, int value, int made) {
  return value >= program.inputs && value == made - 1;
}

// With what the step before has made as the first operand, where the order does not matter.
void PutLastFirst(ScalarProgram* program) {
  int made = program->inputs;
  for (ScalarStep& s : program->steps) {
    if ((s.op == ScalarOp::kAdd || s.op == ScalarOp::kMul) &&
        IsLast(*program, s.operands[1], made)) {
      std::swap(s.operands[0], s.operands[1]);
    }
    ++made;
  }
}

// Of what each step makes, whether others look for it in shared memory.
std::vector<bool> KeptSteps(const ScalarProgram& program) {
  std::vector<bool> kept(program.steps.size());
  int made = program.inputs;
  for (const ScalarStep& s : program.steps) {
    for (int k = 0; k < InfoOf(s.op).operands; ++k) {
      const int value = s.operands[static_cast<size_t>(k)];
      if (value < program.inputs || (k == 0 && IsLast(program, value, made))) continue;
      kept[static_cast<size_t>(value - program.inputs)] = true;
    }
    ++made;
  }
  return kept;
}

Lie LieOf(const Walk& walk, int n, bool aligned) {
  if (walk.rank == 0) return Lie::kSplat;
  const int last = walk.rank - 1;
  const int64_t stride = walk.strides[0][last];
  // The end of the array may be less than n elements; of an inner dim it may not.
  if (last > 0 && walk.dims[last] % n != 0) return Lie::kApart;
  if (stride == 0) return Lie::kSplat;
  for (int d = 0; d < last; ++d) aligned &= walk.strides[0][d] % n == 0;
  if (stride != 1 || !aligned) return Lie::kApart;
  return last == 0 ? Lie::kDense : Lie::kPacked;
}

// Fills in `f` but for its operands and where its results lie. places: of the program's values.
template <typename F>
void AddSteps(const ScalarProgram& program, const std::vector<Place>& places, F* f) {
  auto place = [&](int value) { return places[static_cast<size_t>(value)]; };
  for (int made = 0; made < static_cast<int>(places.size()); ++made) {
    Step step;
    if (made < program.inputs) {
      step.a = place(made);
    } else {
      const ScalarStep& s = program.steps[static_cast<size_t>(made - program.inputs)];
      const int operands = InfoOf(s.op).operands;
      step.op = s.op;
      if (!IsLast(program, s.operands[0], made)) step.a = place(s.operands[0]);
      if (operands > 1) step.b = place(s.operands[1]);
      if (operands > 2) step.c = place(s.operands[2]);
      step.to = place(made).at;
    }
    // An operand needs a step where it is a result, a value more than one where it is several.
    bool needed = made >= program.inputs;
    for (size_t i = 0; i < program.results.size(); ++i) {
      if (program.results[i] != made) continue;
      step.result = static_cast<int8_t>(i);
      f->steps[f->num_steps++] = step;
      step = Step();
      needed = false;
    }
    if (needed) f->steps[f->num_steps++] = step;
  }
}

template <typename W, typename Math = Exact>
KernelPtr Make(const KernelRequest& r) {
  using F = Fused<W, Math>;
  ScalarProgram program = ScalarProgram::Parse(*r.call.attrs, static_cast<int>(r.call.in.size()));
  PutLastFirst(&program);
  const TensorView& first = r.call.out[0];
  F f;
  f.n = first.num_elements();
  auto aligned = [](const TensorView& v) {
    return Aligned(v.data, static_cast<size_t>(DTypeSize(v.dtype)) * F::kPer);
  };
  std::vector<Place> places;
  auto add_place = [&](Type type, bool kept) {
    places.push_back({kept ? static_cast<int16_t>(f.bytes) : kNowhere, type});
    if (kept) f.bytes += F::kN * static_cast<int>(type == Type::kSame ? sizeof(W) : 2);
  };
  std::vector<Operand> others;
  for (const TensorView& v : r.call.in) {
    const auto walk = MakeWalk(first.shape, {BroadcastStrides(v.shape, first.shape)});
    Type type;
    if (!walk || !TypeOf<W>(v.dtype, &type)) return nullptr;
    add_place(type, true);
    Operand in = {v.data, places.back(), LieOf(*walk, F::kPer, aligned(v)), walk->small,
                  walk->rank};
    std::copy(walk->dims, walk->dims + walk->rank, in.dims);
    std::copy(walk->strides[0], walk->strides[0] + walk->rank, in.strides);
    if (in.lie == Lie::kDense) {
      f.inputs[f.num_dense++] = in;
    } else {
      others.push_back(in);
    }
  }
  f.num_inputs = static_cast<int>(r.call.in.size());
  std::ranges::copy(others, f.inputs + f.num_dense);
  for (const bool kept : KeptSteps(program)) add_place(Type::kSame, kept);
  for (size_t i = 0; i < program.results.size(); ++i) {
    const TensorView& v = r.call.out[i];
    if (!TypeOf<W>(v.dtype, &f.results[i].type)) return nullptr;
    f.results[i].data = v.data;
    f.results[i].packed = aligned(v);
  }
  AddSteps(program, places, &f);
  const int64_t packs = CeilDiv(f.n, F::kPer);
  int threads = kElementThreads;
  auto blocks = [&] { return std::min<int64_t>(CeilDiv(packs, F::kPacks * threads), 1 << 16); };
  // Small arrays are spread over many blocks: at their end packs are read one by one.
  while (f.bytes * threads > F::kShared || (threads > 32 && blocks() < 128)) threads /= 2;
  return MakeKernel([f, blocks = blocks(), threads, packs](const Launch& launch) {
    LaunchKernel(launch, FusedKernel<F>, blocks, threads, static_cast<size_t>(f.bytes * threads), f,
                 packs);
  });
}

KernelPtr MakeFused(const KernelRequest& r) {
  auto half = [](const TensorView& v) { return IsHalf(v.dtype); };
  if (r.call.out[0].dtype == DType::kF64) return Make<double>(r);
  return std::ranges::all_of(r.call.in, half) && std::ranges::all_of(r.call.out, half)
             ? Make<float, Fast>(r)
             : Make<float>(r);
}

constexpr Binding kBindings[] = {{"fused_elementwise", MakeFused}};

}  // namespace

std::span<const Binding> FusedElementwiseBindings() { return kBindings; }

}  // namespace shardc::cuda::SHARDC_KERNEL_SPACE
