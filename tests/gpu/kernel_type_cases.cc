// Ops in all the types that they take, where the samples have one.
#include "ir/op_def.h"
#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kF16, DType::kBF16,
                            DType::kI32, DType::kI64, DType::kBool};

// Numbers that all types but bool hold.
HostTensor Numbers(DType dtype, Shape shape, uint64_t seed) {
  const HostTensor ints = RandomInts(std::move(shape), seed, -9, 9);
  HostTensor out(dtype, ints.shape());
  for (int64_t i = 0; i < out.num_elements(); ++i) {
    const double v = ints.AsDouble(i);
    out.SetDouble(i, dtype == DType::kBool ? (v > 0 ? 1 : 0) : v);
  }
  return out;
}

class List {
 public:
  void Add(std::string name, std::string op, std::vector<HostTensor> operands,
           Attributes attrs = {}) {
    cases_.push_back({op + "/" + name, op, std::move(attrs), std::move(operands)});
  }
  std::vector<KernelCase> Take() { return std::move(cases_); }

 private:
  std::vector<KernelCase> cases_;
};

void AddCasts(List& list) {
  for (DType from : kTypes) {
    for (DType to : kTypes) {
      list.Add(StrCat(DTypeName(from), " to ", DTypeName(to)), "cast", {Numbers(from, {37}, 1)},
               {{"to", std::string(DTypeName(to))}});
    }
  }
}

void AddIntegers(List& list, DType dtype) {
  const std::string name(DTypeName(dtype));
  HostTensor a = Numbers(dtype, {37, 24}, 1), b = Numbers(dtype, {37, 24}, 2);
  for (std::string op : {"add", "sub", "mul", "max", "min"}) list.Add(name, op, {a, b});
  for (std::string op : {"neg", "abs", "sign"}) list.Add(name, op, {a});
  for (std::string op : {"equal", "less"}) list.Add(name, op, {a, b});
  for (std::string op : {"reduce_sum", "reduce_max", "reduce_min"}) {
    list.Add(name + " rows", op, {a}, {{"axes", Ints{1}}});
    list.Add(name + " tiles", op, {Numbers(dtype, {1000, 64}, 3)}, {{"axes", Ints{0}}});
    list.Add(name + " columns", op, {Numbers(dtype, {1000, 3}, 3)}, {{"axes", Ints{0}}});
  }
  list.Add(name, "cumsum", {a}, {{"axis", int64_t{1}}});
  for (bool largest : {false, true}) {
    list.Add(StrCat(name, largest ? " largest" : " least"), "top_k", {a},
             {{"axis", int64_t{1}}, {"k", int64_t{5}}, {"largest", largest}});
  }
}

// What only moves elements, of one byte each.
void AddBools(List& list) {
  HostTensor a = RandomBools({70, 33}, 1), b = RandomBools({70, 33}, 2),
             c = RandomBools({70, 33}, 3);
  list.Add("bool", "equal", {a, b});
  list.Add("bool", "where", {a, b, c});
  list.Add("bool", "transpose", {a}, {{"perm", Ints{1, 0}}});
  list.Add("16 bytes each", "transpose", {RandomBools({70, 33, 16}, 1)}, {{"perm", Ints{1, 0, 2}}});
  list.Add("bool", "concat", {a, b}, {{"axis", int64_t{1}}});
  list.Add("bool", "broadcast_to", {RandomBools({1, 33}, 4)}, {{"shape", Ints{70, 33}}});
  list.Add("bool", "gather", {a, RandomInts({9}, 5, 0, 70)}, {{"axis", int64_t{0}}});
  list.Add("bool", "gather_nd", {a, RandomInts({9, 2}, 6, 0, 33)});
  list.Add("bool", "pad", {a}, {{"low", Ints{0, 1}}, {"high", Ints{2, 0}}, {"value", 1.0}});
}

// Types of the operands, of one operand that may be narrower, and of the result that "out" chooses.
struct Mix {
  DType main, narrow, out;
  std::string Name() const {
    return StrCat(DTypeName(main), " ", DTypeName(narrow), " ", DTypeName(out));
  }
};
std::vector<Mix> Mixes() {
  std::vector<Mix> mixes;
  for (DType half : {DType::kBF16, DType::kF16}) {
    const DType f32 = DType::kF32;
    mixes.insert(mixes.end(), {{f32, half, f32}, {f32, f32, half}, {f32, half, half}});
    mixes.insert(mixes.end(), {{half, half, f32}, {half, half, half}});
  }
  mixes.push_back({DType::kF32, DType::kF32, DType::kF32});
  return mixes;
}

HostTensor Floats(DType dtype, Shape shape, uint64_t seed) {
  return As(RandomFloats(std::move(shape), seed), dtype);
}

// Rows that a thread holds one, two and four pieces of, single elements and packs; that are kept in
// shared memory, and that are too long for it.
void AddRows(List& list, const Mix& mix) {
  auto f = [&](Shape shape, uint64_t seed) { return Floats(mix.main, std::move(shape), seed); };
  const std::string out(DTypeName(mix.out));
  for (int64_t cols : {24, 25, 1000, 1023, 1501, 2064, 4100, 8200, 16400}) {
    const Shape all = {2, cols}, rows = {2};
    const HostTensor narrow = Floats(mix.narrow, all, 2);
    list.Add(StrCat(mix.Name(), ", ", cols), "layer_norm_grad_add",
             {f(all, 1), narrow, f(all, 3), f(rows, 4), f(rows, 5), f({cols}, 6)},
             {{"bias", true}, {"sums", true}, {"out", out}});
    list.Add(StrCat(mix.Name(), ", ", cols, ", y"), "layer_norm_grad",
             {narrow, f(all, 3), f(rows, 4), f(rows, 5), f({cols}, 6), f({cols}, 7)},
             {{"bias", true}, {"y", out}});
  }
  for (int64_t cols : {1000, 84000}) {
    const std::string name = StrCat(mix.Name(), ", ", cols);
    const Shape all = {2, cols};
    const HostTensor narrow = Floats(mix.narrow, all, 2);
    HostTensor labels = RandomInts({2}, 3, 0, cols - 1);
    const Attributes loss = {{"label_smoothing", 0.1}, {"out", out}};
    Attributes part = loss;
    part.Set("classes", cols - 1);
    list.Add(name, "add_layer_norm", {f(all, 1), narrow, f({cols}, 3), f({cols}, 4)},
             {{"eps", 1e-5}, {"out", out}});
    list.Add(name, "cross_entropy_with_grad", {f({2}, 1), narrow, labels}, part);
    list.Add(name, "cross_entropy_grad", {f({2}, 1), narrow, labels, f({2}, 4)}, loss);
  }
  if (mix.main == DType::kF32 && mix.out == mix.main) {
    list.Add(mix.Name(), "softmax_stats",
             {Floats(mix.narrow, {9, 50}, 1), RandomInts({9}, 2, 0, 50), f({9}, 3)});
  }
  if (mix.narrow != mix.main) return;
  for (int64_t cols : {1000, 84000}) {
    const HostTensor x = f({2, cols}, 1), w = f({cols}, 2);
    list.Add(StrCat(mix.Name(), ", ", cols), "layer_norm", {x, w, w},
             {{"eps", 1e-5}, {"out", out}});
    list.Add(StrCat(mix.Name(), ", ", cols), "rms_norm", {x, w}, {{"eps", 1e-5}, {"out", out}});
  }
  for (std::string op : {"reduce_sum", "reduce_max"}) {
    list.Add(mix.Name(), op, {f({37, 50}, 1)}, {{"axes", Ints{0}}, {"out", out}});
  }
}

// k = 0: nothing but the bias.
void AddBiases(List& list, const Mix& mix) {
  if (mix.narrow != mix.main || (mix.main == DType::kF32 && mix.out != mix.main)) return;
  for (int64_t k : {0, 40}) {
    list.Add(StrCat(mix.Name(), ", k ", k), "linear",
             {Floats(mix.main, {7, k}, 1), Floats(mix.main, {k, 25}, 2), Floats(mix.main, {25}, 3)},
             {{"out", std::string(DTypeName(mix.out))}});
  }
}

// Halves of 16 bytes of each type, of 8 and 4, of one element, and what is no multiple of that;
// with tables in f32 beside halves, for all heads and for each; with a rest and without.
void AddRotaries(List& list, DType dtype, DType tables, DType out) {
  for (int64_t pairs : {8, 12, 6, 5}) {
    for (int64_t rest : {int64_t{0}, pairs, int64_t{1}}) {
      for (bool interleaved : {false, true}) {
        const bool inverse = rest != 0;
        const std::string name =
            StrCat(DTypeName(dtype), " ", DTypeName(tables), " ", DTypeName(out), ", ", pairs,
                   " pairs and ", rest, interleaved ? ", neighbours" : "");
        Attributes attrs;
        if (interleaved) attrs.Set("interleaved", true);
        if (inverse) attrs.Set("inverse", true);
        if (out != dtype) attrs.Set("out", std::string(DTypeName(out)));
        const Shape x = {2, 5, 3, 2 * pairs + rest};
        const Shape table = rest == 1 ? Shape{2, 1, 3, pairs} : Shape{5, 1, pairs};
        list.Add(name, "rotary",
                 {Floats(dtype, x, 1), Floats(tables, table, 2), Floats(tables, table, 3)}, attrs);
      }
    }
  }
}

}  // namespace

std::vector<KernelCase> TypeCases() {
  List list;
  AddCasts(list);
  for (DType dtype : {DType::kI32, DType::kI64}) AddIntegers(list, dtype);
  AddBools(list);
  for (const Mix& mix : Mixes()) {
    AddRows(list, mix);
    AddBiases(list, mix);
  }
  for (DType dtype : {DType::kF32, DType::kF64, DType::kF16, DType::kBF16}) {
    AddRotaries(list, dtype, dtype, dtype);
    if (DTypeSize(dtype) != 2) continue;
    const DType f32 = DType::kF32;
    AddRotaries(list, dtype, f32, dtype);
    AddRotaries(list, dtype, f32, f32);
    AddRotaries(list, f32, f32, dtype);
  }
  return list.Take();
}

}  // namespace shardc::testing
