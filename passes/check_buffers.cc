// Buffers, their types and places, and the lists that name them.
#include <algorithm>
#include <unordered_set>

#include "ir/diagnostic.h"
#include "passes/check_context.h"

namespace shardc {
namespace {

// Far above any tensor, and far below what overflows when multiplied by an element's size.
constexpr int64_t kMaxElements = int64_t{1} << 58;

bool ValidAxes(const AxisList& axes, const Mesh& mesh) {
  return std::all_of(axes.begin(), axes.end(), [&](int a) { return a < mesh.num_axes(); });
}

}  // namespace

std::string MalformedType(const TensorType& type, const Mesh& mesh) {
  if (static_cast<int>(type.dtype) >= kNumDTypes) return "has an unknown element type";
  if (type.sharding.dims.size() != type.shape.size()) {
    return StrCat("has shardings for ", type.sharding.dims.size(), " dims, not ",
                  type.shape.size());
  }
  int64_t elements = 1;
  for (int64_t d : type.shape) {
    if (d < 0) return StrCat("has a dim of size ", d);
    if (__builtin_mul_overflow(elements, d, &elements) || elements > kMaxElements) {
      return "has more elements than any memory";
    }
  }
  for (const DimSharding& d : type.sharding.dims) {
    if (!ValidAxes(d.axes, mesh)) return "is cut over an axis that the mesh does not have";
    if (d.granule < 1 || d.granule > kMaxElements) return StrCat("has granule ", d.granule);
    // Also keeps the sum of the segments from overflowing.
    for (int64_t s : d.segments) {
      if (s < 1 || s > kMaxElements / static_cast<int64_t>(d.segments.size())) {
        return StrCat("has a segment of size ", s);
      }
    }
  }
  if (!ValidAxes(type.sharding.partial_sum, mesh) || !ValidAxes(type.sharding.partial_max, mesh)) {
    return "is partial over an axis that the mesh does not have";
  }
  return {};
}

namespace {

class BufferChecker {
 public:
  explicit BufferChecker(CheckContext& context)
      : context_(context), program_(context.program), mesh_(context.program.mesh) {}

  void Run() {
    size_t n = program_.buffers.size();
    context_.visits += static_cast<int64_t>(n);
    context_.elements.resize(n);
    context_.roots.resize(n);
    if (program_.arena_bytes < 0) {
      context_.Fail("arena", "E3104", StrCat("has ", program_.arena_bytes, " bytes"));
    }
    for (size_t i = 0; i < n; ++i) CheckType(static_cast<int>(i));
    ResolveRoots();
    for (size_t i = 0; i < n; ++i) CheckPlace(static_cast<int>(i));
  }

 private:
  [[noreturn]] void Fail(int id, const char* code, const std::string& what) const {
    context_.Fail(StrCat("buffer ", id), code, StrCat(context_.DescribeBuffer(id), " ", what));
  }

  void CheckType(int id) {
    const Buffer& b = program_.buffers[id];
    if (std::string what = MalformedType(b.type, mesh_); !what.empty()) Fail(id, "E3105", what);
    try {
      CheckSharding(b.type, mesh_, {});
    } catch (const Diagnostic& d) {
      Fail(id, "E3105", StrCat("has a sharding that does not fit: ", d.message()));
    }
    int64_t elements = 1;
    bool same = b.local_shape.size() == b.type.shape.size();
    for (size_t i = 0; same && i < b.local_shape.size(); ++i) {
      same = b.local_shape[i] == LocalDim(b.type.shape[i], b.type.sharding.dims[i], mesh_);
      elements *= b.local_shape[i];
    }
    if (!same) {
      Fail(
          id, "E3105",
          StrCat("has local shape ", ShapeToString(b.local_shape), ", but its type ",
                 TypeToString(b.type, mesh_), " gives ", ShapeToString(LocalShape(b.type, mesh_))));
    }
    if (b.bytes != elements * DTypeSize(b.type.dtype)) {
      Fail(id, "E3105",
           StrCat("has ", b.bytes, " bytes, but local shape ", ShapeToString(b.local_shape),
                  " takes ", elements * DTypeSize(b.type.dtype)));
    }
    context_.elements[id] = elements;
  }

  void ResolveRoots() {
    int n = static_cast<int>(program_.buffers.size());
    std::vector<int>& roots = context_.roots;
    std::fill(roots.begin(), roots.end(), -1);
    for (int id = 0; id < n; ++id) {
      int root = id, steps = 0;
      while (roots[root] < 0 && program_.buffers[root].alias_of != -1) {
        int next = program_.buffers[root].alias_of;
        if (next < 0 || next >= n) Fail(root, "E3104", StrCat("is an alias of no buffer: ", next));
        ++context_.visits;
        if (++steps > n) Fail(id, "E3104", "is an alias of itself");
        root = next;
      }
      if (roots[root] >= 0) root = roots[root];
      // Everything on the way has the same root, so that long chains are walked once.
      for (int at = id; at != root && roots[at] < 0; at = program_.buffers[at].alias_of) {
        roots[at] = root;
      }
      roots[root] = root;
    }
  }

  void CheckPlace(int id) const {
    const Buffer& b = program_.buffers[id];
    int root = context_.roots[id];
    if (root != id) return CheckAlias(id, root);
    switch (b.space) {
      case Space::kArena:
        return CheckRange(id, program_.arena_bytes, "the arena");
      case Space::kConstant:
        return CheckRange(id, static_cast<int64_t>(program_.constants.size()), "the constants");
      case Space::kState:
      case Space::kInput:
        if (b.name.empty()) Fail(id, "E3104", "is a state or an input without a name");
        return;
    }
    Fail(id, "E3104", "is in an unknown space");
  }

  void CheckAlias(int id, int root_id) const {
    const Buffer &b = program_.buffers[id], &root = program_.buffers[root_id];
    if (b.space != root.space) {
      Fail(id, "E3105",
           StrCat("is in another space than the buffer it is a view of: ",
                  context_.DescribeBuffer(root_id)));
    }
    bool placed = b.space == Space::kArena || b.space == Space::kConstant;
    if (placed && b.offset != root.offset) {
      Fail(id, "E3105",
           StrCat("does not start where it is a view of: ", context_.DescribeBuffer(root_id)));
    }
    if (b.bytes > root.bytes) {
      Fail(id, "E3105",
           StrCat("is longer than what it is a view of: ", context_.DescribeBuffer(root_id)));
    }
    if (!b.name.empty() && b.name != root.name) {
      Fail(
          id, "E3105",
          StrCat("has another name than what it is a view of: ", context_.DescribeBuffer(root_id)));
    }
  }

  void CheckRange(int id, int64_t limit, const char* space) const {
    const Buffer& b = program_.buffers[id];
    if (b.offset < 0 || b.offset > limit || b.bytes > limit - b.offset) {
      Fail(id, "E3104", StrCat("is not inside ", space, " of ", limit, " bytes"));
    }
    if (b.offset % kBufferAlignment != 0) {
      Fail(id, "E3104", StrCat("is not aligned to ", kBufferAlignment, " bytes"));
    }
  }

  CheckContext& context_;
  const Program& program_;
  const Mesh& mesh_;
};

using Names = std::unordered_map<std::string_view, int>;

class ListChecker {
 public:
  explicit ListChecker(CheckContext& context) : context_(context), program_(context.program) {}

  void Run() {
    Names inputs = CheckList(program_.inputs, "input", "E3113");
    Names states = CheckList(program_.states, "state", "E3111");
    CheckList(program_.outputs, "output", "E3113");
    for (const NamedBuffer& e : program_.inputs) CheckEntry(e, Space::kInput, "input");
    for (const NamedBuffer& e : program_.states) CheckEntry(e, Space::kState, "state");
    context_.state_of.assign(program_.buffers.size(), -1);
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& root = context_.root(static_cast<int>(i));
      if (root.space == Space::kInput) {
        FindEntry(static_cast<int>(i), inputs, program_.inputs, "input", "E3113");
      }
      if (root.space == Space::kState) {
        context_.state_of[i] =
            FindEntry(static_cast<int>(i), states, program_.states, "state", "E3111");
      }
    }
  }

 private:
  Names CheckList(const std::vector<NamedBuffer>& list, const char* what, const char* twice) const {
    Names names;
    int n = static_cast<int>(program_.buffers.size());
    for (size_t i = 0; i < list.size(); ++i) {
      const NamedBuffer& e = list[i];
      if (e.name.empty()) Fail(what, e.name, "E3113", StrCat(what, " ", i, " has no name"));
      if (e.buffer < 0 || e.buffer >= n) {
        Fail(what, e.name, "E3113", StrCat("there is no buffer ", e.buffer));
      }
      if (!names.emplace(e.name, static_cast<int>(i)).second) {
        Fail(what, e.name, twice, StrCat("the ", what, " is listed twice"));
      }
      CheckWhole(e, what);
    }
    CheckPieces(list, names, what);
    return names;
  }

  // The pieces of a tensor fill it.
  void CheckPieces(const std::vector<NamedBuffer>& list, const Names& names,
                   const char* what) const {
    std::map<std::string_view, std::vector<const NamedBuffer*>> wholes;
    for (const NamedBuffer& e : list) {
      if (!e.piece.whole.empty()) wholes[e.piece.whole].push_back(&e);
    }
    for (auto& [whole, pieces] : wholes) {
      const NamedBuffer& first = *pieces[0];
      if (names.contains(std::string(whole))) {
        Fail(what, first.name, "E3113",
             StrCat("is a piece of '", whole, "', which is there whole"));
      }
      std::sort(pieces.begin(), pieces.end(),
                [](auto* a, auto* b) { return a->piece.start < b->piece.start; });
      int64_t end = 0;
      for (const NamedBuffer* e : pieces) {
        if (!FitsBeside(*e, first)) {
          Fail(what, e->name, "E3113", StrCat("is not of the kind of '", first.name, "'"));
        }
        if (e->piece.start != end) {
          Fail(what, e->name, "E3113",
               StrCat("begins at ", e->piece.start, " of '", whole, "', not at ", end));
        }
        end += context_.buffer(e->buffer).type.shape[e->piece.dim];
      }
      if (end != first.piece.whole_size) {
        Fail(what, first.name, "E3113",
             StrCat("the pieces of '", whole, "' end at ", end, " of ", first.piece.whole_size));
      }
    }
  }

  // Equal but for the start and the size along the dim.
  bool FitsBeside(const NamedBuffer& a, const NamedBuffer& b) const {
    const TensorType &s = context_.buffer(a.buffer).type, &t = context_.buffer(b.buffer).type;
    if (a.piece.dim != b.piece.dim || a.piece.whole_size != b.piece.whole_size ||
        s.dtype != t.dtype || s.rank() != t.rank() || a.piece.dim < 0 || a.piece.dim >= s.rank()) {
      return false;
    }
    for (int d = 0; d < s.rank(); ++d) {
      auto at = static_cast<size_t>(d);
      if (d != a.piece.dim && s.shape[at] != t.shape[at]) return false;
    }
    return true;
  }

  [[noreturn]] void Fail(const char* what, const std::string& name, const char* code,
                         std::string message) const {
    context_.Fail(StrCat(what, " '", name, "'"), code, std::move(message));
  }

  // A partial value is no rank's value of the tensor.
  void CheckWhole(const NamedBuffer& e, const char* what) const {
    const Sharding& s = context_.buffer(e.buffer).type.sharding;
    for (const AxisList* axes : {&s.partial_sum, &s.partial_max}) {
      for (int a : *axes) {
        if (program_.mesh.axis_size(a) == 1) continue;
        Fail(what, e.name, "E3113",
             StrCat(context_.DescribeBuffer(e.buffer), " is partial over axis '",
                    program_.mesh.axes()[a].name, "'"));
      }
    }
  }

  void CheckEntry(const NamedBuffer& e, Space space, const char* what) const {
    const Buffer& b = context_.buffer(e.buffer);
    if (b.space == space && b.alias_of == -1 && b.name == e.name) return;
    Fail(what, e.name, "E3113",
         StrCat(context_.DescribeBuffer(e.buffer), " is not the ", what, " '", e.name, "' itself"));
  }

  int FindEntry(int id, const Names& names, const std::vector<NamedBuffer>& list, const char* what,
                const char* code) const {
    const Buffer& root = context_.root(id);
    auto it = names.find(root.name);
    if (it == names.end()) {
      Fail(what, root.name, code,
           StrCat(context_.DescribeBuffer(id), " is a ", what, " that the list of ", what,
                  "s lacks"));
    }
    int listed = list[it->second].buffer;
    if (!SameLayout(context_.buffer(listed).type, root.type)) {
      Fail(what, root.name, code,
           StrCat(context_.DescribeBuffer(context_.roots[id]), " is ",
                  TypeToString(root.type, program_.mesh), ", but the ", what, " is ",
                  TypeToString(context_.buffer(listed).type, program_.mesh)));
    }
    return it->second;
  }

  bool SameLayout(const TensorType& a, const TensorType& b) const {
    return a == b ||
           (a.SameTensor(b) && Canonical(a, program_.mesh) == Canonical(b, program_.mesh));
  }

  CheckContext& context_;
  const Program& program_;
};

}  // namespace

void CheckBuffers(CheckContext& context) { BufferChecker(context).Run(); }

void CheckNamedLists(CheckContext& context) { ListChecker(context).Run(); }

}  // namespace shardc
