// Larger and sharded cases.
#include "ir/op_def.h"
#include "tests/gpu/kernel_cases.h"

namespace shardc::testing {
namespace {

HostTensor Floats(DType dtype, Shape shape, uint64_t seed) {
  return As(RandomFloats(std::move(shape), seed), dtype);
}

class List {
 public:
  explicit List(DType dtype) : dtype_(dtype) {}
  HostTensor F(Shape shape, uint64_t seed = 1) const {
    return Floats(dtype_, std::move(shape), seed);
  }
  void Add(std::string name, std::string op, std::vector<HostTensor> operands,
           Attributes attrs = {}) {
    cases_.push_back({op + "/" + name, op, std::move(attrs), std::move(operands)});
  }
  const KernelCase& Last() const { return cases_.back(); }
  // And with halves beside f32, where the op takes them.
  std::vector<KernelCase> Take() {
    for (size_t i = 0, n = cases_.size(); i < n && dtype_ == DType::kF32; ++i) {
      for (int operand : GetOpDef(cases_[i].op).narrow_operands) {
        for (DType half : {DType::kBF16, DType::kF16}) {
          KernelCase c = cases_[i];
          c.name += StrCat(", operand ", operand, " ", DTypeName(half));
          HostTensor& narrow = c.operands[operand];
          narrow = As(narrow, half);
          cases_.push_back(std::move(c));
        }
      }
    }
    return std::move(cases_);
  }

 private:
  DType dtype_;
  std::vector<KernelCase> cases_;
};

// Forward and backward of one shape. lse is not what the forward gives, only as large: the gradient
// is a formula.
struct Heads {
  int64_t b, hq, hkv, s, t, d, dv;
  bool causal, bshd;
  int64_t first = -1;  // these are queries from here on, of as many as keys; -1: all there are
};
void AddAttention(List& list, DType dtype, const std::string& name, Heads z,
                  std::vector<HostTensor> mask = {}, double dropout = 0) {
  auto tensor = [&](int64_t h, int64_t rows, int64_t width) {
    return z.bshd ? Shape{z.b, rows, h, width} : Shape{z.b, h, rows, width};
  };
  Attributes attrs = {
      {"scale", 0.125}, {"causal", z.causal}, {"layout", std::string(z.bshd ? "bshd" : "bhsd")}};
  if (z.first >= 0) {
    attrs.Set("origin", Ints{0, 0, z.first, 0});
    attrs.Set("whole", Ints{z.b, z.hq, z.t, z.t});
  }
  HostTensor q = list.F(tensor(z.hq, z.s, z.d), 1), k = list.F(tensor(z.hkv, z.t, z.d), 2),
             v = list.F(tensor(z.hkv, z.t, z.dv), 3), grad = list.F(tensor(z.hq, z.s, z.dv), 4),
             o = list.F(tensor(z.hq, z.s, z.dv), 5);
  std::vector<HostTensor> operands = {q, k, v};
  // What comes behind the others.
  std::vector<HostTensor> last = std::move(mask);
  if (dropout > 0) {
    attrs.Set("ratio", dropout);
    attrs.Set("seed", int64_t{77});
    last.push_back(HostTensor::Scalar(int64_t{3}));
  }
  operands.insert(operands.end(), last.begin(), last.end());
  list.Add(name, "attention", operands, attrs);
  HostTensor lse(DTypeSize(dtype) == 2 ? DType::kF32 : dtype, {z.b, z.hq, z.s});
  for (int64_t i = 0; i < lse.num_elements(); ++i)
    lse.SetDouble(i, 4 + 0.01 * static_cast<double>(i % 50));
  operands = {grad, q, k, v, o, lse};
  operands.insert(operands.end(), last.begin(), last.end());
  list.Add(name, "attention_grad", operands, attrs);
}

// A model's own way to hide a key, of which the first query sees none: its scores are all the
// lowest number there is, and all its keys count alike. Its lse is that number, too.
void AddLowestMask(List& list, DType dtype) {
  const double lowest = dtype == DType::kBF16  ? -3.3895313892515355e38
                        : dtype == DType::kF16 ? -65504.0
                                               : -3.4028234663852886e38;
  HostTensor mask = As(HostTensor(DType::kF64, {20, 24}), dtype);
  for (int64_t i = 0; i < 20; ++i) {
    for (int64_t j = 0; j < 24; ++j) mask.SetDouble(i * 24 + j, i == 0 || j > i ? lowest : 0.0);
  }
  AddAttention(list, dtype, "lowest mask", {1, 2, 2, 20, 24, 64, 64, false, true}, {mask});
  if (dtype == DType::kF16) return;  // which leaves something of the scores
  std::vector<HostTensor> grad = list.Last().operands;
  for (int64_t h = 0; h < 2; ++h) grad[5].SetDouble(h * 20, lowest);
  list.Add("lowest mask and lse", "attention_grad", grad, list.Last().attrs);
}

// Of f32: heads that take little of a tile or all, rows that end within one, and several tiles of
// both.
void AddTiledAttention(List& list) {
  const DType f32 = DType::kF32;
  AddAttention(list, f32, "9 queries", {2, 2, 2, 9, 9, 8, 8, false, true});
  AddAttention(list, f32, "17 queries", {1, 2, 2, 17, 17, 16, 24, true, false});
  AddAttention(list, f32, "grouped, 63 queries", {1, 4, 2, 63, 63, 32, 32, true, true});
  AddAttention(list, f32, "65 queries, narrow keys", {1, 1, 1, 65, 65, 100, 128, false, false});
  AddAttention(list, f32, "130 queries", {1, 2, 1, 130, 130, 64, 64, true, true});
  AddAttention(list, f32, "130 queries between", {1, 1, 1, 130, 193, 128, 96, true, true, 40});
  AddAttention(list, f32, "keys before all", {1, 1, 1, 20, 140, 64, 64, true, true, 100});
  AddAttention(list, f32, "float mask 64", {1, 4, 2, 70, 72, 64, 64, false, true},
               {list.F({4, 70, 72}, 9)});
  AddAttention(list, f32, "dropout, odd 128", {1, 2, 1, 67, 67, 128, 128, true, true}, {}, 0.2);
}

void AddPackedAttention(List& list, DType dtype, const std::string& name, Shape o, bool causal) {
  Shape all = o;
  all[2] *= 3;
  Attributes attrs = {{"scale", 0.125}, {"causal", causal}};
  HostTensor x = list.F(all, 1),
             lse(DTypeSize(dtype) == 2 ? DType::kF32 : dtype, {o[0], o[2], o[1]});
  for (int64_t i = 0; i < lse.num_elements(); ++i) {
    lse.SetDouble(i, 4 + 0.01 * static_cast<double>(i % 50));
  }
  list.Add(name, "packed_attention", {x}, attrs);
  list.Add(name, "packed_attention_grad", {list.F(o, 4), x, list.F(o, 5), lse}, attrs);
}

// Rows in packs and not, of one, two and four of them a thread, of more with sums in shared memory,
// and too wide for that; more of them than blocks.
void AddNormGrads(List& list, DType dtype) {
  auto add = [&](int64_t rows, int64_t cols) {
    const Shape shape = {rows, cols};
    std::string name = StrCat(rows, " x ", cols);
    HostTensor dy = list.F(shape, 1), x = list.F(shape, 2), residual = list.F(shape, 3),
               w = list.F({cols}, 4), mean = list.F({rows}, 5), rstd = list.F({rows}, 6);
    Attributes all = {{"bias", true}, {"sums", true}};
    list.Add(name, "layer_norm_grad", {dy, x, mean, rstd, w}, {{"bias", true}});
    list.Add(name, "rms_norm_grad", {dy, x, rstd, w});
    list.Add(name, "layer_norm_grad_add", {residual, dy, x, mean, rstd, w}, all);
    list.Add(name, "rms_norm_grad_add", {residual, dy, x, rstd, w});
    const std::string type(DTypeName(dtype));
    all.Set("y", type);
    list.Add(name + ", y", "layer_norm_grad_add",
             {residual, dy, x, mean, rstd, w, list.F({cols}, 7)}, all);
    list.Add(name + ", y", "rms_norm_grad", {dy, x, rstd, w}, {{"y", type}});
  };
  for (int64_t cols : {1000, 1023, 2064, 4100, 8200}) add(7, cols);
  add(2, 16400);
  // Several rows a block.
  add(2100, 24);
  add(1100, 25);
  add(530, 264);
  // Of the type whose sums go to shared memory first.
  if (dtype == DType::kF64) add(300, 2064);
}

// Of norms that keep a row in the registers of two warps, or of all, and of those that cannot.
void AddWideNorms(List& list) {
  for (int64_t cols : {1032, 16384, 16400, 84000}) {
    const std::string name = StrCat("2 x ", cols);
    HostTensor x = list.F({2, cols}, 1), r = list.F({2, cols}, 2), w = list.F({cols}, 3),
               b = list.F({cols}, 4);
    Attributes eps = {{"eps", 1e-5}};
    list.Add(name, "layer_norm", {x, w, b}, eps);
    list.Add(name, "rms_norm", {x, w}, eps);
    list.Add(name, "add_layer_norm", {x, r, w, b}, eps);
  }
}

void AddRows(List& list, DType dtype) {
  AddNormGrads(list, dtype);
  AddWideNorms(list);
  for (int64_t cols : {1000, 1023}) {
    Shape shape = {37, cols};
    std::string name = StrCat("37 x ", cols);
    HostTensor x = list.F(shape, 1), dy = list.F(shape, 2), w = list.F({cols}, 3),
               b = list.F({cols}, 4);
    HostTensor mean = list.F({37}, 5), rstd = list.F({37}, 6);
    Attributes eps = {{"eps", 1e-5}};
    list.Add(name, "layer_norm", {x, w, b}, eps);
    list.Add(name, "rms_norm", {x, w}, eps);
    list.Add(name, "add_layer_norm", {x, dy, w, b}, eps);
    list.Add(name, "softmax", {x}, {{"axis", int64_t{1}}});
    list.Add(name + " axis 0", "softmax", {x}, {{"axis", int64_t{0}}});
    list.Add(name, "softmax_grad", {dy, x}, {{"axis", int64_t{-1}}});
    HostTensor labels = RandomInts({37}, 7, 0, cols), lse(x.dtype(), {37});
    labels.SetDouble(3, -100);
    for (int64_t i = 0; i < 37; ++i) lse.SetDouble(i, 7.5);
    for (double e : {0.0, 0.1}) {
      Attributes loss = {{"ignore_index", int64_t{-100}}, {"label_smoothing", e}};
      list.Add(StrCat(name, " smoothed ", e), "cross_entropy", {x, labels}, loss);
      list.Add(StrCat(name, " smoothed ", e), "cross_entropy_grad", {mean, x, labels, lse}, loss);
      list.Add(StrCat(name, " smoothed ", e), "cross_entropy_with_grad", {mean, x, labels}, loss);
      Attributes part = loss;
      part.Set("classes", cols - 5);
      HostTensor fewer = RandomInts({37}, 7, 0, cols - 5);
      list.Add(StrCat(name, " smoothed ", e, " long rows"), "cross_entropy_with_grad",
               {mean, x, fewer}, part);
    }
    for (int64_t axis : {0, 1}) {
      for (std::string op : {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min"}) {
        list.Add(StrCat(name, " axis ", axis), op, {x}, {{"axes", Ints{axis}}});
      }
    }
    list.Add(name, "sum_squares", {x});
    list.Add(name, "add", {x, w});
    list.Add(name, "mul", {x, list.F({37, 1}, 8)});
  }
  list.Add("middle", "reduce_sum", {list.F({3, 700, 5})}, {{"axes", Ints{1}}});
  list.Add("outer", "reduce_sum", {list.F({300, 2, 9})}, {{"axes", Ints{0, 2}}});
  list.Add("chunks", "sum_squares", {list.F({40000})});
  // Several chunks of several tiles, the last of each with fewer.
  HostTensor tall = list.F({5, 61, 328}, 1), more = list.F({5, 61, 328}, 2);
  for (std::string op : {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min"}) {
    list.Add("tiles", op, {tall}, {{"axes", Ints{0, 1}}});
  }
}

// Rows that are kept in shared memory for the gradient, also several a block, and longer ones.
void AddVocabularies(List& list) {
  auto add = [&](int64_t rows, int64_t cols) {
    HostTensor x = list.F({rows, cols}, 1), loss = list.F({rows}, 2),
               labels = RandomInts({rows}, 7, 0, cols - 1);
    labels.SetDouble(1, -100);
    list.Add(StrCat(rows, " x ", cols), "cross_entropy_with_grad", {loss, x, labels},
             {{"ignore_index", int64_t{-100}}, {"label_smoothing", 0.1}, {"classes", cols - 1}});
  };
  add(3, 9001);
  add(3, 60001);
  add(600, 301);
}

// Operands that are beside each other, repeated in one way or another, and at the end of an array.
void AddFused(List& list) {
  const Shape whole = {3, 5, 4, 24};
  for (Shape other : {Shape{24}, Shape{3, 5, 4, 1}, Shape{3, 5, 1, 24}, Shape{5, 1, 1}, Shape{},
                      Shape{3, 1, 4, 24}, Shape{3, 1, 1, 1}}) {
    list.Add(
        ShapeToString(other), "fused_elementwise", {list.F(whole, 1), list.F(other, 2)},
        {{"steps", Strings{"mul 0 1", "silu 2", "add 3 0", "mul 4 3"}}, {"results", Ints{5, 3}}});
  }
  for (Shape shape : {Shape{1001}, Shape{7, 13, 11}, Shape{9, 6}}) {
    list.Add(ShapeToString(shape), "fused_elementwise",
             {list.F(shape, 1), list.F({shape.back()}, 2), list.F({1}, 3)},
             {{"steps", Strings{"mul 0 1", "tanh 3", "sub 4 2", "mul 5 5"}},
              {"results", Ints{6, 0, 3}}});
    list.Add(ShapeToString(shape), "fused_elementwise",
             {list.F(shape, 1), list.F({shape.back()}, 2), list.F({1}, 3)},
             {{"steps", Strings{"less 0 1", "where 3 0 2", "greater_equal 4 2", "where 5 1 4"}},
              {"results", Ints{6, 4}}});
  }
}

void AddMoves(List& list) {
  HostTensor x = list.F({5, 70, 33});
  for (Ints perm : {Ints{0, 2, 1}, Ints{2, 1, 0}, Ints{1, 0, 2}, Ints{2, 0, 1}}) {
    list.Add(ShapeToString(perm), "transpose", {x}, {{"perm", perm}});
  }
  list.Add("heads", "transpose", {list.F({2, 40, 4, 16})}, {{"perm", Ints{0, 2, 1, 3}}});
  list.Add("three", "concat", {list.F({3, 8}, 1), list.F({3, 16}, 2), list.F({3, 5}, 3)},
           {{"axis", int64_t{1}}});
  list.Add("three", "split", {list.F({3, 48})}, {{"axis", int64_t{1}}, {"sizes", Ints{16, 24, 8}}});
  HostTensor ids = RandomInts({5000}, 3, 0, 90);  // several chunks, many equal
  list.Add("packed", "embedding", {list.F({90, 16}), ids});
  list.Add("odd", "embedding", {list.F({90, 7}), As(ids, DType::kI32)});
  list.Add("packed", "embedding_grad", {list.F({5000, 16}), ids}, {{"rows", int64_t{101}}});
  list.Add("odd", "embedding_grad", {list.F({5000, 3}), As(ids, DType::kI32)},
           {{"rows", int64_t{90}}});
  // So few rows that each chunk of ids is summed by itself; one row has no id.
  HostTensor types = RandomInts({5000}, 8, 0, 2);
  list.Add("few rows", "embedding_grad", {list.F({5000, 16}), types}, {{"rows", int64_t{3}}});
  list.Add("few odd rows", "embedding_grad", {list.F({5000, 3}), types}, {{"rows", int64_t{3}}});
  list.Add("few rows of two", "gather_grad", {list.F({2, 5000, 3}), types},
           {{"axis", int64_t{1}}, {"size", int64_t{3}}});
  list.Add("few pairs", "gather_nd_grad", {list.F({5000, 16}), RandomInts({5000, 2}, 9, 0, 2)},
           {{"sizes", Ints{2, 2}}});
  list.Add("negative", "gather_grad", {list.F({2, 3000, 3}), RandomInts({3000}, 5, -20, 20)},
           {{"axis", int64_t{1}}, {"size", int64_t{20}}});
  list.Add("pairs", "gather_nd_grad", {list.F({5000, 16}), RandomInts({5000, 2}, 6, -9, 9)},
           {{"sizes", Ints{9, 10}}});
  list.Add("batch", "gather_nd_grad", {list.F({20, 300, 3}), RandomInts({20, 300, 1}, 7, -9, 9)},
           {{"batch_dims", int64_t{1}}, {"sizes", Ints{9}}});
  // Lines of less than a warp, and of several elements a thread, many equal.
  list.Add("narrow", "top_k", {list.F({500, 8})}, {{"axis", int64_t{1}}, {"k", int64_t{2}}});
  list.Add("wide", "top_k", {RandomInts({3, 5000}, 10, 0, 300)},
           {{"axis", int64_t{1}}, {"k", int64_t{60}}});
  list.Add("down", "top_k", {list.F({3, 700, 5})},
           {{"axis", int64_t{1}}, {"k", int64_t{9}}, {"largest", false}});
}

void AddProducts(List& list) {
  list.Add("wide", "matmul", {list.F({3, 17, 40}, 1), list.F({40, 24}, 2)});
  list.Add("batch", "matmul", {list.F({2, 3, 9, 16}, 1), list.F({3, 16, 8}, 2)});
  list.Add("stretched", "matmul_nt", {list.F({2, 1, 9, 16}, 1), list.F({1, 3, 8, 16}, 2)});
  list.Add("rows", "matmul_tn", {list.F({3, 50, 9}, 1), list.F({3, 50, 16}, 2)},
           {{"batch", int64_t{0}}});
  list.Add("batch", "matmul_tn", {list.F({3, 50, 9}, 1), list.F({3, 50, 16}, 2)},
           {{"batch", int64_t{1}}});
  // Of odd widths, as a vocabulary may be.
  list.Add("long rows", "matmul", {list.F({3, 17, 48}, 1), list.F({41, 20}, 2)},
           {{"cols", int64_t{41}}, {"length", int64_t{24}}});
  list.Add("odd long rows", "matmul", {list.F({3, 17, 43}, 1), list.F({41, 24}, 2)},
           {{"cols", int64_t{41}}});
  list.Add("long rows", "matmul_nt", {list.F({17, 48}, 1), list.F({33, 48}, 2)},
           {{"length", int64_t{40}}});
  list.Add("long rows", "matmul_tn", {list.F({50, 40}, 1), list.F({50, 16}, 2)},
           {{"cols", int64_t{37}}});
  list.Add("one odd size", "matmul", {list.F({3, 16, 48}, 1), list.F({41, 24}, 2)},
           {{"cols", int64_t{41}}});
  list.Add("one odd size", "matmul_nt", {list.F({16, 48}, 1), list.F({33, 48}, 2)},
           {{"length", int64_t{40}}});
  list.Add("one odd size", "matmul_tn", {list.F({48, 40}, 1), list.F({48, 16}, 2)},
           {{"cols", int64_t{37}}});
  list.Add("odd", "matmul", {list.F({3, 17, 41}, 1), list.F({41, 24}, 2)});
  list.Add("odd", "matmul_nt", {list.F({17, 43}, 1), list.F({33, 43}, 2)});
  list.Add("odd", "matmul_tn", {list.F({50, 37}, 1), list.F({50, 16}, 2), list.F({37, 16}, 3)},
           {{"batch", int64_t{0}}});
  const HostTensor chosen = RandomBools({3, 50}, 3);
  list.Add("left for all", "matmul_rows", {list.F({50, 16}, 1), list.F({3, 16, 8}, 2), chosen});
  list.Add("each", "matmul_rows_nt", {list.F({3, 50, 16}, 1), list.F({3, 9, 16}, 2), chosen});
  list.Add("left for all", "matmul_rows_tn",
           {list.F({1, 50, 9}, 1), list.F({3, 50, 16}, 2), chosen});
  list.Add("added to", "matmul_rows_tn",
           {list.F({3, 50, 9}, 1), list.F({3, 50, 16}, 2), chosen, list.F({3, 9, 16}, 4)});
  list.Add("of one", "matmul_rows_tn",
           {list.F({50, 9}, 1), list.F({50, 16}, 2), RandomBools({50}, 3)});
  list.Add("odd", "linear", {list.F({7, 39}, 1), list.F({39, 25}, 2), list.F({25}, 3)});
  list.Add("nt", "linear", {list.F({7, 40}, 1), list.F({24, 40}, 2), list.F({24}, 3)},
           {{"nt", true}});
}

}  // namespace

std::vector<KernelCase> LargeCases(DType dtype) {
  List list(dtype);
  AddRows(list, dtype);
  AddVocabularies(list);
  AddFused(list);
  AddMoves(list);
  AddProducts(list);
  AddPackedAttention(list, dtype, "causal 64", {2, 70, 3, 64}, true);
  AddPackedAttention(list, dtype, "odd", {1, 66, 2, 13}, false);
  AddAttention(list, dtype, "causal 64", {1, 2, 2, 70, 70, 64, 64, true, false});
  AddAttention(list, dtype, "grouped, fewer queries", {1, 4, 2, 33, 97, 72, 40, true, true});
  AddAttention(list, dtype, "more queries than keys", {1, 2, 1, 90, 20, 13, 13, true, false});
  AddAttention(list, dtype, "first queries", {1, 2, 2, 70, 200, 64, 64, true, true, 0});
  AddAttention(list, dtype, "queries between", {2, 4, 2, 65, 257, 72, 40, true, false, 66});
  AddAttention(list, dtype, "last queries", {1, 2, 1, 33, 161, 128, 128, true, true, 128});
  AddAttention(list, dtype, "dropout, queries between", {1, 2, 2, 36, 140, 64, 64, true, true, 71},
               {}, 0.2);
  AddAttention(list, dtype, "bool mask", {2, 2, 2, 20, 65, 128, 128, false, true},
               {RandomBools({2, 1, 20, 65}, 9)});
  AddAttention(list, dtype, "float mask", {1, 1, 1, 66, 40, 200, 256, false, false},
               {list.F({66, 40}, 9)});
  // Keys in multiples of four, where lanes share draws, and not.
  AddAttention(list, dtype, "dropout, causal 64", {2, 2, 2, 68, 68, 64, 64, true, true}, {}, 0.1);
  AddAttention(list, dtype, "dropout, grouped", {1, 4, 2, 33, 100, 72, 40, false, false}, {}, 0.3);
  AddAttention(list, dtype, "dropout, odd", {2, 2, 1, 70, 67, 13, 13, true, true}, {}, 0.5);
  AddAttention(list, dtype, "dropout, mask", {1, 2, 2, 66, 40, 200, 256, false, false},
               {list.F({66, 40}, 9)}, 0.2);
  AddLowestMask(list, dtype);
  if (dtype == DType::kF32) AddTiledAttention(list);
  bool half = DTypeSize(dtype) == 2;
  if (half) {  // results of another type
    std::string f32 = "f32";
    list.Add("to f32", "matmul", {list.F({17, 40}, 1), list.F({40, 24}, 2)}, {{"out", f32}});
    list.Add("to f32", "linear", {list.F({17, 40}, 1), list.F({40, 24}, 2), list.F({24}, 3)},
             {{"out", f32}});
    list.Add("to f32", "reduce_sum", {list.F({37, 50})}, {{"axes", Ints{0}}, {"out", f32}});
  }
  return list.Take();
}

std::vector<KernelCase> ShardedCases() {
  std::vector<KernelCase> cases;
  Mesh mesh({{"tp", 3}});
  const DType f32 = DType::kF32;
  auto cut = [&](DType dtype, Shape shape, int dim, std::vector<int64_t> segments = {}) {
    TensorType t(dtype, std::move(shape));
    if (dim >= 0) {
      t.sharding.dims[dim].axes = {0};
      t.sharding.dims[dim].segments = std::move(segments);
    }
    return t;
  };
  auto add = [&](std::string name, std::string op, std::vector<HostTensor> operands,
                 std::vector<TensorType> types, Attributes attrs) {
    cases.push_back(
        {op + "/" + name, op, std::move(attrs), std::move(operands), std::move(types), mesh});
  };
  auto f = [&](Shape s, uint64_t seed = 1) { return Floats(f32, std::move(s), seed); };
  // 10 over 3: 4, 3 and 3, so that two ranks have padding.
  HostTensor ids = RandomInts({7}, 2, 0, 10);
  const DType i64 = DType::kI64;
  add("rows cut", "embedding", {f({10, 5}), ids},
      {cut(f32, {10, 5}, 0), cut(i64, {7}, -1), cut(f32, {7, 5}, -1)}, {});
  add("ids cut", "embedding", {f({10, 5}), ids},
      {cut(f32, {10, 5}, -1), cut(i64, {7}, 0), cut(f32, {7, 5}, 0)}, {});
  Attributes rows = {{"rows", int64_t{10}}};
  add("rows cut", "embedding_grad", {f({7, 5}), ids},
      {cut(f32, {7, 5}, -1), cut(i64, {7}, -1), cut(f32, {10, 5}, 0)}, rows);
  add("ids cut", "embedding_grad", {f({7, 5}), ids},
      {cut(f32, {7, 5}, 0), cut(i64, {7}, 0), cut(f32, {10, 5}, -1)}, rows);
  for (Ints segments : {Ints{}, Ints{5, 5}}) {
    std::string name = segments.empty() ? "padded" : "segments";
    TensorType x = cut(f32, {7, 10}, 1, segments), s = cut(f32, {7}, -1), l = cut(i64, {7}, -1);
    add(name, "softmax_stats", {f({7, 10}), ids, f({7}, 3)}, {x, l, s, s, s}, {});
    add(name + " sum", "softmax_stats", {f({7, 10}), ids, f({7}, 3)}, {x, l, s, s, s, s},
        {{"sum_logits", true}});
    add(name, "cross_entropy_grad", {f({7}, 4), f({7, 10}), ids, f({7}, 3)}, {s, x, l, s, x},
        {{"label_smoothing", 0.1}});
    for (std::string op : {"reduce_sum", "reduce_mean", "reduce_max"}) {
      add(name, op, {f({7, 10})}, {x, s}, {{"axes", Ints{1}}});
    }
    add(name, "sum_squares", {f({7, 10})}, {x, cut(f32, {}, -1)}, {});
    add(name, "zero_padding", {f({7, 10})}, {x, x}, {});
    add(name, "local_slice", {f({7, 10})}, {cut(f32, {7, 10}, -1), x},
        {{"axes", Strings{"tp"}}, {"dim", int64_t{1}}});
    Attributes pieces = {{"axes", Strings{"tp"}}, {"dim", int64_t{1}}, {"cut_axes", Strings{"tp"}}};
    if (!segments.empty()) pieces.Set("segments", segments);
    TensorType staged(f32, {3, 7, 4});
    add(name, "pack", {f({7, 10})}, {cut(f32, {7, 10}, -1), staged}, pieces);
    add(name, "unpack", {f({3, 7, 4})}, {staged, cut(f32, {7, 10}, -1)}, pieces);
  }
  // Four heads over three ranks, of which two have padding: places in the whole tensor.
  TensorType heads = cut(f32, {2, 5, 4, 8}, 2), statistic = cut(f32, {2, 4, 5}, 1);
  const HostTensor q = f({2, 5, 4, 8}), lse = f({2, 4, 5}, 5);
  const HostTensor step = HostTensor::Scalar(int64_t{9});
  const TensorType scalar(i64, {});
  Attributes drops = {
      {"scale", 0.3}, {"causal", true}, {"layout", std::string("bshd")}, {"ratio", 0.4}};
  add("dropout", "attention", {q, q, q, step}, {heads, heads, heads, scalar, heads, statistic},
      drops);
  add("dropout", "attention_grad",
      {f({2, 5, 4, 8}, 6), q, f({2, 5, 4, 8}, 7), f({2, 5, 4, 8}, 8), f({2, 5, 4, 8}, 9), lse,
       step},
      {heads, heads, heads, heads, heads, statistic, scalar, heads, heads, heads}, drops);
  // Five queries: two, two, and one with padding.
  const TensorType queries = cut(f32, {2, 5, 4, 8}, 1), of_queries = cut(f32, {2, 4, 5}, 2);
  const TensorType keys = cut(f32, {2, 5, 4, 8}, -1);
  const Attributes causal = {{"scale", 0.3}, {"causal", true}, {"layout", std::string("bshd")}};
  add("queries cut", "attention", {q, q, q}, {queries, keys, keys, queries, of_queries}, causal);
  // Of one tensor the differences in it would be nothing but rounding.
  add("queries cut", "attention_grad",
      {f({2, 5, 4, 8}, 6), q, f({2, 5, 4, 8}, 7), f({2, 5, 4, 8}, 8), f({2, 5, 4, 8}, 9), lse},
      {queries, queries, keys, keys, queries, of_queries, queries, keys, keys}, causal);
  for (DType dtype : {DType::kF64, DType::kBF16, DType::kBool}) {
    const TensorType x = cut(dtype, {7, 10}, 1);
    add(std::string(DTypeName(dtype)), "zero_padding", {As(RandomInts({7, 10}, 3, 0, 2), dtype)},
        {x, x}, {});
  }
  TensorType rows_cut = cut(f32, {7}, 0);
  add("rows cut", "cross_entropy", {f({7, 10}), ids},
      {cut(f32, {7, 10}, 0), cut(i64, {7}, 0), rows_cut, rows_cut}, {});
  return cases;
}

}  // namespace shardc::testing
