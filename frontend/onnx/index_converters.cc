// Ops that take parts of a tensor: Slice, Split, Gather and its kin, TopK, Pad, Trilu, OneHot.
#include <algorithm>
#include <limits>
#include <string>

#include "frontend/onnx/convert_util.h"
#include "ir/shape_limit.h"

namespace shardc::onnx_import {
namespace {

struct Bounds {
  int64_t start, limit, step;
};

// One dim of ONNX's Slice as one of ours: positions inside of the dim, the limit on the far side.
Bounds ClampSlice(int64_t n, int64_t start, int64_t end, int64_t step) {
  auto from_end = [n](int64_t i) { return i < 0 ? i + n : i; };
  int64_t far = std::max<int64_t>(n, 1);
  if (step > 0) {
    start = std::clamp<int64_t>(from_end(start), 0, n);
    int64_t limit = std::clamp<int64_t>(from_end(end), 0, n);
    return {start, std::max(start, limit), std::min(step, far)};
  }
  start = std::min(std::max<int64_t>(from_end(start), 0), n - 1);
  int64_t limit = std::max<int64_t>(from_end(end), -1);
  return {start, std::min(start, limit), std::max(step, -far)};
}

void Slice(NodeContext& c) {
  Value* x = c.input(0);
  std::optional<Ints> starts_of = IntsOf(c, 1, "starts"), ends_of = IntsOf(c, 2, "ends");
  if (!starts_of || !ends_of) c.Fail("E1302", "has no starts and ends");
  const Ints &from = *starts_of, &to = *ends_of;
  Ints axes = IntsOf(c, 3, "axes").value_or(Count(static_cast<int64_t>(from.size())));
  axes = Axes(c, axes, x->type.rank());
  Ints by = c.has_input(4) ? c.ConstantInts(4) : Ints(from.size(), 1);
  if (to.size() != from.size() || axes.size() != from.size() || by.size() != from.size()) {
    c.Fail("E1303", "starts, ends, axes and steps of Slice differ in length");
  }
  Ints starts(x->type.rank(), 0), limits = x->type.shape, steps(x->type.rank(), 1);
  for (size_t i = 0; i < axes.size(); ++i) {
    if (by[i] == 0) c.Fail("E1303", "a step of Slice is 0");
    int64_t d = axes[i];
    Bounds b = ClampSlice(x->type.shape[d], from[i], to[i], by[i]);
    starts[d] = b.start, limits[d] = b.limit, steps[d] = b.step;
  }
  Attributes attrs = {{"starts", starts}, {"limits", limits}, {"steps", steps}};
  Ints ones(steps.size(), 1);
  const bool whole = steps == ones && limits == x->type.shape &&
                     std::ranges::all_of(starts, [](int64_t start) { return start == 0; });
  c.SetOutput(0, whole ? x : c.Make("slice", {x}, std::move(attrs)));
}

// n as so many sizes as there are outputs, all equal but a smaller last one.
Ints EvenSizes(const NodeContext& c, int64_t n) {
  const int64_t count = c.num_outputs();
  if (c.Int("num_outputs", count) != count) {
    c.Fail("E1303", StrCat("Split has num_outputs=", c.Int("num_outputs", count), " but ", count,
                           " outputs"));
  }
  int64_t size = count > 0 ? (n + count - 1) / count : 0;
  if (count < 1 || size * (count - 1) > n) {
    c.Fail("E1303", StrCat("a dim of size ", n, " does not split into ", count, " parts"));
  }
  Ints sizes(count, size);
  sizes.back() = n - size * (count - 1);
  return sizes;
}

std::vector<Value*> SplitInto(NodeContext& c, Value* x, int64_t axis, const Ints& sizes) {
  if (sizes.size() == 1 && sizes[0] == x->type.shape[axis]) return {x};
  if (std::find(sizes.begin(), sizes.end(), 0) == sizes.end()) return Pieces(c, x, axis, sizes);
  // Pieces that hold nothing are slices, which fold.
  std::vector<Value*> pieces;
  int64_t start = 0;
  for (int64_t size : sizes) {
    if (size < 0 || size > x->type.shape[axis] - start) c.Fail("E1303", "the sizes do not fit");
    pieces.push_back(SliceDim(c, x, static_cast<int>(axis), start, start + size));
    start += size;
  }
  if (start != x->type.shape[axis]) c.Fail("E1303", "the sizes do not fit");
  return pieces;
}

// A loop over what data chooses (a mixture's experts that have any tokens) is unrolled by an
// exporter into as many rounds as were chosen then. A file with a round for each of them is one for
// data that chooses all.
void TakeAllAsChosen(NodeContext& c, const ChosenRows::Mark& mark, int64_t n, const Ints& sizes) {
  int64_t left = n;
  for (int64_t size : sizes) left -= std::clamp<int64_t>(size, 0, left);
  if (left == 0) return c.rows().SetAll(mark.chosen);
  c.Fail("E1301",
         StrCat("splits what data chooses of ", n, " into ", n - left,
                ", as many as were chosen when the model was exported"),
         "export it with an input that chooses all: of a mixture of experts with so many tokens "
         "that each expert has some");
}

void Split(NodeContext& c) {
  Value* x = c.input(0);
  int64_t axis = Axis(c, c.Int("axis", 0), x->type.rank());
  std::optional<Ints> given = IntsOf(c, 1, "split");
  Ints sizes = given ? *given : EvenSizes(c, x->type.shape[axis]);
  if (static_cast<int>(sizes.size()) != c.num_outputs()) {
    c.Fail("E1303", StrCat("Split has ", sizes.size(), " sizes but ", c.num_outputs(), " outputs"));
  }
  const ChosenRows::Mark* mark = c.rows().Of(x);
  if (given && mark != nullptr && mark->dim == axis && mark->coordinates < 0) {
    TakeAllAsChosen(c, *mark, x->type.shape[axis], sizes);
  }
  std::vector<Value*> pieces = SplitInto(c, x, axis, sizes);
  for (int i = 0; i < c.num_outputs(); ++i) c.SetOutput(i, pieces[i]);
}

void SplitToSequence(NodeContext& c) {
  Value* x = c.input(0);
  int64_t axis = Axis(c, c.Int("axis", 0), x->type.rank()), n = x->type.shape[axis];
  const bool squeezed = !c.has_input(1) && !c.Flag("keepdims", true);
  Ints sizes(n, 1);
  if (c.has_input(1)) {
    sizes = c.ConstantInts(1);
    const HostTensor* given = c.ConstantOf(c.input(1));
    if (given->shape().empty()) {  // one size for all
      if (sizes[0] < 1) c.Fail("E1303", StrCat("pieces of size ", sizes[0]));
      int64_t size = sizes[0];
      sizes.assign(n / size, size);
      if (n % size != 0) sizes.push_back(n % size);
    }
  }
  std::vector<Value*> pieces = SplitInto(c, x, axis, sizes);
  if (squeezed) {
    shardc::Shape shape = x->type.shape;
    shape.erase(shape.begin() + axis);
    for (Value*& piece : pieces) piece = c.Reshape(piece, shape);
  }
  c.SetSequence(0, std::move(pieces));
}

void SequenceConstruct(NodeContext& c) {
  std::vector<Value*> elements;
  for (int i = 0; i < c.num_inputs(); ++i) elements.push_back(c.input(i));
  c.SetSequence(0, std::move(elements));
}

void SequenceEmpty(NodeContext& c) { c.SetSequence(0, {}, c.Int("dtype", 1)); }

// Where an element of a sequence is, or, with `after`, may be put; the last of these without input.
int64_t Position(NodeContext& c, int input, int64_t n, bool after) {
  const int64_t places = n + after;
  if (!c.has_input(input)) return places - 1;
  const int64_t i = c.ConstantInt(input);
  if (i < -n || i >= places) c.Fail("E1303", StrCat("position ", i, " of a sequence of ", n));
  return i < 0 ? i + n : i;
}

void SequenceInsert(NodeContext& c) {
  std::vector<Value*> elements = c.Sequence(0);
  elements.insert(elements.begin() + Position(c, 2, std::ssize(elements), true), c.input(1));
  c.SetSequence(0, std::move(elements));
}

void SequenceErase(NodeContext& c) {
  std::vector<Value*> elements = c.Sequence(0);
  if (elements.empty()) c.Fail("E1303", "the sequence is empty");
  elements.erase(elements.begin() + Position(c, 1, std::ssize(elements), false));
  c.SetSequence(0, std::move(elements));
}

void SequenceLength(NodeContext& c) {
  c.SetOutput(0, c.Constant(HostTensor::Scalar(std::ssize(c.Sequence(0)))));
}

void SequenceAt(NodeContext& c) {
  const std::vector<Value*>& elements = c.Sequence(0);
  c.SetOutput(0, elements[Position(c, 1, std::ssize(elements), false)]);
}

void ConcatFromSequence(NodeContext& c) {
  std::vector<Value*> elements = c.Sequence(0);
  if (elements.empty()) c.Fail("E1303", "the sequence is empty");
  const bool stacked = c.Flag("new_axis", false);
  int64_t axis = Axis(c, c.Int("axis", 0), elements[0]->type.rank() + stacked);
  const shardc::Shape same = elements[0]->type.shape;
  for (Value*& element : elements) {
    if (!stacked) break;
    shardc::Shape shape = element->type.shape;
    if (shape != same) c.Fail("E1303", "the elements do not have the same shape");
    shape.insert(shape.begin() + axis, 1);
    element = c.Reshape(element, shape);
  }
  c.SetOutput(0, Joined(c, std::move(elements), axis));
}

// The columns of positions that read a dim as a matrix by columns, 0, c, 2 c, ..., 1, c + 1, ...; 1
// of those that read it in order; nothing of others.
std::optional<int64_t> ColumnsOf(const Ints& positions, int64_t n) {
  if (std::ssize(positions) != n || n == 0) return std::nullopt;
  const int64_t columns = n == 1 ? 1 : positions[1], rows = columns > 0 ? n / columns : 0;
  if (rows * columns != n) return std::nullopt;
  for (int64_t i = 0; i < n; ++i) {
    if (positions[i] != i % rows * columns + i / rows) return std::nullopt;
  }
  return columns;
}

// Of positions that are known and name all of a dim, in order or by columns, or repeat it, what
// they pick, with `dims` in its place: of transposes and broadcasts, which cuts of the dim pass.
// Null where that is not so, or where x is a table.
Value* Whole(NodeContext& c, Value* x, int64_t axis, const Ints& positions,
             const shardc::Shape& dims) {
  const int64_t n = x->type.shape[axis];
  Ints at;
  for (int64_t i : positions) at.push_back(i < 0 ? i + n : i);
  if (x->producer && x->producer->name() == "param") return nullptr;
  const std::optional<Repeats> repeats = RepeatsOf(at, n);
  const std::optional<int64_t> columns = ColumnsOf(at, n);
  if (!repeats && !columns) return nullptr;
  const shardc::Shape before(x->type.shape.begin(), x->type.shape.begin() + axis);
  const shardc::Shape behind(x->type.shape.begin() + axis + 1, x->type.shape.end());
  auto shape = [&](const Ints& middle) {
    shardc::Shape all = before;
    all.insert(all.end(), middle.begin(), middle.end());
    all.insert(all.end(), behind.begin(), behind.end());
    return all;
  };
  if (columns == 1) return c.Reshape(x, shape(dims));
  if (columns) {
    Ints perm = Count(x->type.rank() + 1);
    std::swap(perm[axis], perm[axis + 1]);
    return c.Reshape(c.Transpose(c.Reshape(x, shape({n / *columns, *columns})), perm), shape(dims));
  }
  const int64_t k = repeats->times;
  Value* each = c.Reshape(x, shape(repeats->in_turns ? Ints{1, n} : Ints{n, 1}));
  each = c.BroadcastTo(each, shape(repeats->in_turns ? Ints{k, n} : Ints{n, k}));
  return c.Reshape(each, shape(dims));
}

// What was looked up in x as rows of which data chooses, apart from what it was looked up in. Of
// rows that are chosen of chosen ones one mark would have to say both.
Value* AsRows(NodeContext& c, const Value* x, Value* v, const ChosenRows::Mark& mark) {
  if (c.rows().Of(x) != nullptr) {
    c.Fail("E1301", StrCat(c.op_type(), " of chosen rows of others is not supported"),
           kDataDecides);
  }
  v = c.builder().Make("reshape", {v}, {{"shape", v->type.shape}});
  c.rows().Set(v, mark);
  return v;
}

void Gather(NodeContext& c) {
  Value *x = c.input(0), *indices = c.input(1);
  int64_t axis = Axis(c, c.Int("axis", 0), x->type.rank());
  const HostTensor* constant = c.ConstantOf(indices);
  const int64_t n = x->type.shape[axis];
  for (int64_t i = 0; constant != nullptr && i < constant->num_elements(); ++i) {
    const int64_t at = constant->AsInt(i);
    if (at >= -n && at < n) continue;
    c.Fail("E1303", StrCat("index ", at, " is out of range for a dim of size ", n),
           "check what the symbols of the inputs are bound to: a table of positions has so many");
  }
  if (constant != nullptr) {
    const Ints positions = c.ConstantInts(1);
    Value* all = Whole(c, x, axis, positions, indices->type.shape);
    if (const ChosenRows::Mark* rows = c.rows().Of(indices)) {
      if (all == nullptr) all = LookUp(c, x, indices, axis);
      ChosenRows::Mark mark = *rows;
      mark.dim += static_cast<int>(axis);
      all = AsRows(c, x, all, mark);
      if (axis == 0) c.rows().SetTaken(all, x, positions);
    }
    if (all != nullptr) return c.SetOutput(0, all);
  }
  if (constant == nullptr || indices->type.rank() != 0) {
    return c.SetOutput(0, LookUp(c, x, indices, axis));
  }
  // One position: a slice, which needs no scatter for its gradient.
  int64_t at = constant->AsInt(0);
  if (at < 0) at += n;
  shardc::Shape out = x->type.shape;
  out.erase(out.begin() + axis);
  Value* part = SliceDim(c, x, static_cast<int>(axis), at, at + 1);
  c.SetOutput(0, c.Reshape(part, std::move(out)));
}

// The same of tuples of positions along the first dims; null also where one is out of range.
Value* WholeNd(NodeContext& c, Value* x, const Ints& positions, const shardc::Shape& indices) {
  const int64_t k = indices.back();
  const shardc::Shape& shape = x->type.shape;
  if (k < 1 || k > x->type.rank()) return nullptr;
  Ints at;
  for (size_t i = 0; i < positions.size(); i += k) {
    int64_t place = 0;
    for (int64_t d = 0; d < k; ++d) {
      const int64_t p = positions[i + d];
      if (p < -shape[d] || p >= shape[d]) return nullptr;
      place = place * shape[d] + (p < 0 ? p + shape[d] : p);
    }
    at.push_back(place);
  }
  shardc::Shape rows = {NumElements(shardc::Shape(shape.begin(), shape.begin() + k))};
  rows.insert(rows.end(), shape.begin() + k, shape.end());
  if (k > 1 && !RepeatsOf(at, rows[0]) && !ColumnsOf(at, rows[0])) return nullptr;
  return Whole(c, c.Reshape(x, rows), 0, at, shardc::Shape(indices.begin(), indices.end() - 1));
}

void GatherNd(NodeContext& c) {
  int64_t batch_dims = c.Int("batch_dims", 0);
  Value *x = c.input(0), *indices = c.input(1), *picked = nullptr;
  const shardc::Shape& shape = indices->type.shape;
  const bool known = c.ConstantOf(indices) != nullptr && batch_dims == 0 && !shape.empty();
  if (known) picked = WholeNd(c, x, c.ConstantInts(1), shape);
  if (picked == nullptr) {
    picked = c.Make("gather_nd", {x, indices}, {{"batch_dims", batch_dims}});
  }
  if (const ChosenRows::Mark* rows = c.rows().Of(indices); rows != nullptr && known) {
    picked = AsRows(c, x, picked, *rows);
    c.rows().SetTaken(picked, x, c.ConstantInts(1));
  }
  c.SetOutput(0, picked);
}

void GatherElements(NodeContext& c) {
  Value *x = c.input(0), *indices = c.input(1);
  const int rank = x->type.rank(), axis = Axis(c, c.Int("axis", 0), rank);
  if (indices->type.rank() != rank) {
    c.Fail("E1303", "GatherElements needs indices with as many dims as its data");
  }
  const Positions at = PositionsAlong(c, x->type.shape, indices, axis);
  c.SetOutput(0, c.Make("gather_nd", {x, at.tuples}, {{"batch_dims", int64_t{at.batch_dims}}}));
}

// Elements are always given in their order: ONNX leaves it open where `sorted` is 0.
void TopK(NodeContext& c) {
  Value* x = c.input(0);
  const int axis = Axis(c, c.Int("axis", -1), x->type.rank());
  constexpr int kTakesKAsInput = 10;
  if (c.opset() < kTakesKAsInput && !c.HasAttr("k")) c.Fail("E1302", "has no k");
  const int64_t k = c.opset() < kTakesKAsInput ? c.Int("k", 0) : c.ConstantInt(1);
  const int64_t n = x->type.shape[axis];
  if (k < 0 || k > n) c.Fail("E1303", StrCat("takes ", k, " of ", n, " elements"));
  Value* indices = c.Make(
      "top_k", {x}, {{"axis", int64_t{axis}}, {"k", k}, {"largest", c.Flag("largest", true)}});
  c.SetOutput(1, indices);
  if (!c.OutputWanted(0)) return;
  const Positions at = PositionsAlong(c, x->type.shape, indices, axis);
  c.SetOutput(0, c.Make("gather_nd", {x, at.tuples}, {{"batch_dims", int64_t{at.batch_dims}}}));
}

// Which element of a dim of size n stands at position i in front of or behind it.
int64_t PadSource(const std::string& mode, int64_t i, int64_t n) {
  if (mode == "edge") return std::clamp<int64_t>(i, 0, n - 1);
  if (mode == "wrap") return (i % n + n) % n;
  int64_t period = std::max<int64_t>(2 * (n - 1), 1);
  i = (i % period + period) % period;
  return std::min(i, period - i);
}

Value* PadByGather(NodeContext& c, Value* v, const std::string& mode, int axis, int64_t low,
                   int64_t high) {
  int64_t n = v->type.shape[axis];
  if (low == 0 && high == 0) return v;
  if (n == 0) c.Fail("E1303", StrCat("an empty dim cannot be padded in mode ", mode));
  if (n + low + high > kMaxWritten) {
    c.Fail("E1301", StrCat("Pad of ", n, " elements to ", n + low + high, " in mode ", mode,
                           " is not supported"));
  }
  Ints from;
  for (int64_t i = -low; i < n + high; ++i) {
    from.push_back(n == 1 ? 0 : PadSource(mode, i, n));
  }
  shardc::Shape shape = {static_cast<int64_t>(from.size())};
  Value* indices = c.Constant(HostTensor::Of<int64_t>(std::move(shape), from));
  return LookUp(c, v, indices, axis);
}

void Pad(NodeContext& c) {
  Value* v = c.input(0);
  int rank = v->type.rank();
  std::string mode = c.String("mode", "constant");
  std::optional<Ints> given = IntsOf(c, 1, "pads");
  if (!given) c.Fail("E1302", "has no pads");
  const Ints& pads = *given;
  Ints axes = Axes(c, c.has_input(3) ? c.ConstantInts(3) : Count(rank), rank);
  if (pads.size() != 2 * axes.size()) c.Fail("E1303", "Pad needs two pads for every axis");
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap") {
    c.Fail("E1303", StrCat("Pad has no mode \"", mode, "\""));
  }
  // Asked for whatever the mode: what nobody asks for is refused.
  double value = c.Float("value", 0);
  if (c.has_input(2) && mode == "constant") value = c.ConstantScalar(2);
  Ints low(rank, 0), high(rank, 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    int64_t before = pads[i], after = pads[axes.size() + i], n = v->type.shape[axes[i]];
    for (int64_t pad : {before, after}) {
      if (pad > kMaxTensorBytes || pad < -n) {
        c.Fail("E1303", StrCat("a pad of ", pad, " does not fit a dim of size ", n));
      }
    }
    int64_t cut_low = std::max<int64_t>(-before, 0), cut_high = std::max<int64_t>(-after, 0);
    if (cut_low + cut_high > n) c.Fail("E1303", "negative pads cut more than there is");
    int axis = static_cast<int>(axes[i]);
    v = SliceDim(c, v, axis, cut_low, n - cut_high);
    low[axis] = std::max<int64_t>(before, 0), high[axis] = std::max<int64_t>(after, 0);
    if (mode != "constant") v = PadByGather(c, v, mode, axis, low[axis], high[axis]);
  }
  Ints none(rank, 0);
  if (mode == "constant" && (low != none || high != none)) {
    v = c.Make("pad", {v}, {{"low", low}, {"high", high}, {"value", value}});
  }
  c.SetOutput(0, v);
}

void Trilu(NodeContext& c) {
  Value* x = c.input(0);
  int rank = x->type.rank();
  if (rank < 2) c.Fail("E1303", "Trilu needs at least two dims");
  bool upper = c.Flag("upper", true);
  int64_t rows = x->type.shape[rank - 2], columns = x->type.shape[rank - 1];
  // Beyond the matrix k means nothing more, and could overflow.
  int64_t k = std::clamp(c.has_input(1) ? c.ConstantInt(1) : 0, -rows - columns, rows + columns);
  HostTensor keep(DType::kBool, {rows, columns});
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      keep.data<bool>()[i * columns + j] = upper ? j - i >= k : j - i <= k;
    }
  }
  c.SetOutput(0, Where(c, c.Constant(std::move(keep)), x, Like(c, x, 0)));
}

// Indices outside of [-depth, depth) give a row without a one.
void OneHot(NodeContext& c) {
  Value *indices = c.Cast(c.input(0), DType::kI64), *values = c.input(2);
  const double number = c.ConstantScalar(1);
  int rank = indices->type.rank() + 1;
  int axis = Axis(c, c.Int("axis", -1), rank);
  if (!(number >= 1 && number <= kMaxWritten)) {
    c.Fail("E1303", StrCat("OneHot has depth ", number));
  }
  const auto depth = static_cast<int64_t>(number);
  shardc::Shape shape = indices->type.shape;
  shape.insert(shape.begin() + axis, 1);
  indices = c.Reshape(indices, shape);
  Value* negative = c.Make("less", {indices, Like(c, indices, 0)});
  indices = Where(c, negative, Plus(c, indices, static_cast<double>(depth)), indices);
  Value* hot = c.Make("equal", {indices, Iota(c, depth, axis, rank)});
  Value* off = c.Reshape(SliceDim(c, values, 0, 0, 1), {});
  Value* on = c.Reshape(SliceDim(c, values, 0, 1, 2), {});
  c.SetOutput(0, Where(c, hot, on, off));
}

}  // namespace

Positions PositionsAlong(NodeContext& c, const shardc::Shape& x, Value* indices, int axis) {
  indices = c.Cast(indices, DType::kI64);
  const shardc::Shape shape = indices->type.shape;
  const int rank = static_cast<int>(x.size());
  int batch = 0;
  while (batch < axis && shape[batch] == x[batch]) ++batch;
  shardc::Shape column = shape;
  column.push_back(1);
  std::vector<Value*> columns;
  for (int d = batch; d < rank; ++d) {
    Value* at = d == axis ? indices : c.BroadcastTo(Iota(c, shape[d], d, rank), shape);
    columns.push_back(c.Reshape(at, column));
  }
  return {Joined(c, std::move(columns), rank), batch};
}

void AddIndexConverters(ConverterTable& table) {
  table.insert({{"Slice", Slice},
                {"Split", Split},
                {"SplitToSequence", SplitToSequence},
                {"SequenceConstruct", SequenceConstruct},
                {"SequenceEmpty", SequenceEmpty},
                {"SequenceInsert", SequenceInsert},
                {"SequenceErase", SequenceErase},
                {"SequenceLength", SequenceLength},
                {"SequenceAt", SequenceAt},
                {"ConcatFromSequence", ConcatFromSequence},
                {"Gather", Gather},
                {"GatherND", GatherNd},
                {"GatherElements", GatherElements},
                {"TopK", TopK},
                {"Pad", Pad},
                {"Trilu", Trilu},
                {"OneHot", OneHot}});
}

}  // namespace shardc::onnx_import
