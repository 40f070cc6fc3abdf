#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "ir/op_def.h"
#include "ir/program_body.h"

namespace shardc {
namespace {

class BoundsChecker {
 public:
  BoundsChecker(const Program& program, const std::string& where)
      : program_(program), where_(where) {}

  void Check() {
    if (program_.arena_bytes < 0) Fail("the arena has a negative size");
    for (int i = 0; i < NumBuffers(); ++i) CheckBuffer(i);
    FindRoots();
    for (int i = 0; i < NumBuffers(); ++i) CheckPlace(i);
    for (const Collective& c : program_.collectives) CheckCollective(c);
    for (size_t i = 0; i < program_.instructions.size(); ++i) CheckInstruction(i);
    CheckNamed(program_.inputs, "input", Space::kInput);
    CheckNamed(program_.states, "state", Space::kState);
    for (const NamedBuffer& o : program_.outputs) {
      const std::string what = "output '" + o.name + "'";
      CheckId(o.buffer, [&] { return what; });
      CheckPiece(o, what);
    }
    CheckNamedRoots();
  }

 private:
  [[noreturn]] void Fail(std::string what) const { ProgramBoundsError(where_, std::move(what)); }

  int NumBuffers() const { return static_cast<int>(program_.buffers.size()); }
  const Buffer& At(int id) const { return program_.buffers[id]; }

  // `what` makes the text: only an error needs it.
  template <typename Text>
  void CheckId(int id, Text what) const {
    if (id < 0 || id >= NumBuffers()) {
      Fail(StrCat(what(), " uses buffer ", id, " of ", NumBuffers()));
    }
  }

  void CheckBuffer(int id) const {
    const Buffer& b = At(id);
    int64_t bytes = NumElements(b.local_shape) * DTypeSize(b.type.dtype);
    if (b.bytes != bytes) {
      Fail(StrCat("buffer ", id, " has ", b.bytes, " bytes for ", DTypeName(b.type.dtype),
                  ShapeToString(b.local_shape), " of ", bytes));
    }
    if (b.offset < 0) Fail(StrCat("buffer ", id, " has the negative offset ", b.offset));
    if (b.alias_of >= 0) CheckId(b.alias_of, [&] { return StrCat("buffer ", id, ", an alias,"); });
  }

  void FindRoots() {
    constexpr int kUnknown = -1, kOnPath = -2;
    roots_.assign(program_.buffers.size(), kUnknown);
    std::vector<int> path;
    for (int i = 0; i < NumBuffers(); ++i) {
      int at = i;
      path.clear();
      while (roots_[at] == kUnknown && At(at).alias_of >= 0) {
        roots_[at] = kOnPath;
        path.push_back(at);
        at = At(at).alias_of;
      }
      if (roots_[at] == kOnPath) Fail(StrCat("buffer ", at, " is an alias of itself"));
      int root = roots_[at] == kUnknown ? at : roots_[at];
      roots_[at] = root;
      for (int p : path) roots_[p] = root;
    }
  }

  void CheckPlace(int id) const {
    const Buffer& b = At(id);
    Space space = At(roots_[id]).space;
    bool placed = space == Space::kArena || space == Space::kConstant;
    if (b.alias_of >= 0) return CheckAlias(id, placed);
    if (!placed) return;
    if (b.offset % kBufferAlignment != 0) {
      Fail(StrCat("buffer ", id, " is at offset ", b.offset, ", not a multiple of ",
                  kBufferAlignment));
    }
    int64_t end = 0, size = space == Space::kArena
                                ? program_.arena_bytes
                                : static_cast<int64_t>(program_.constants.size());
    if (__builtin_add_overflow(b.offset, b.bytes, &end) || end > size) {
      Fail(StrCat("buffer ", id, " of ", b.bytes, " bytes at offset ", b.offset,
                  " does not fit into the ", size, " bytes of the ",
                  space == Space::kArena ? "arena" : "constants"));
    }
  }

  // A chain of aliases stays inside its root because each is inside the next.
  void CheckAlias(int id, bool placed) const {
    const Buffer &b = At(id), &of = At(b.alias_of);
    bool inside =
        b.bytes <= of.bytes &&
        (!placed || (b.offset >= of.offset && b.offset - of.offset <= of.bytes - b.bytes));
    if (!inside) {
      Fail(StrCat("buffer ", id, " of ", b.bytes, " bytes at offset ", b.offset,
                  " is not inside buffer ", b.alias_of, " that it is an alias of"));
    }
  }

  void CheckCollective(const Collective& c) {
    std::string what = StrCat("collective ", c.id, " (", CollectiveKindName(c.kind), ")");
    if (c.elements < 0) Fail(what + " has a negative number of elements");
    std::set<int> seen;
    for (int a : c.axes) {
      if (!seen.insert(a).second) {
        Fail(StrCat(what, " has the axis '", program_.mesh.axes()[a].name, "' twice"));
      }
    }
    if (!collective_ids_.insert(c.id).second) Fail(what + ": its id is not unique");
  }

  void CheckInstruction(size_t index) const {
    const Instruction& i = program_.instructions[index];
    auto what = [&] { return StrCat("instruction ", index, " (", i.op, ")"); };
    if (!FindOpDef(i.op) && i.op != "pack" && i.op != "unpack" && i.op != "copy") {
      Fail(what() + ": there is no such op");
    }
    for (int b : i.operands) CheckId(b, what);
    for (int b : i.results) CheckId(b, what);
    if (i.scratch >= 0) CheckId(i.scratch, what);
    if (i.flops < 0 || i.bytes < 0) {
      Fail(StrCat(what(), " has ", i.flops, " flops and ", i.bytes, " bytes"));
    }
    if (i.collective < 0) return;
    if (i.collective >= static_cast<int>(program_.collectives.size())) {
      Fail(StrCat(what(), " uses collective ", i.collective, " of ", program_.collectives.size()));
    }
    CheckTransfer(i, what());
  }

  // Sizes by the raw semantics of the collective, so that no rank reads or writes beyond a buffer.
  void CheckTransfer(const Instruction& i, const std::string& what) const {
    const Collective& c = program_.collectives[i.collective];
    if (c.kind == CollectiveKind::kSendRecv) return CheckSendRecv(i, c, what);
    if (i.operands.size() != i.results.size()) {
      Fail(
          StrCat(what, " has ", i.operands.size(), " operands and ", i.results.size(), " results"));
    }
    int64_t group = program_.mesh.GroupSize(c.axes);
    for (size_t k = 0; k < i.operands.size(); ++k) {
      const Buffer &in = At(i.operands[k]), &out = At(i.results[k]);
      if (in.type.dtype != c.dtype || out.type.dtype != c.dtype) {
        Fail(StrCat(what, " moves ", DTypeName(in.type.dtype), " to ", DTypeName(out.type.dtype),
                    " by a collective of ", DTypeName(c.dtype)));
      }
      int64_t small = in.bytes, large = out.bytes;
      bool fits = small == large;
      if (c.kind == CollectiveKind::kReduceScatter) std::swap(small, large);
      if (c.kind == CollectiveKind::kAllGather || c.kind == CollectiveKind::kReduceScatter) {
        fits = large % group == 0 && large / group == small;
      } else if (c.kind == CollectiveKind::kAllToAll) {
        fits = fits && in.bytes / DTypeSize(c.dtype) % group == 0;
      }
      if (!fits) {
        Fail(StrCat(what, ": buffers of ", in.bytes, " and ", out.bytes, " bytes do not fit a ",
                    CollectiveKindName(c.kind), " over ", group, " ranks"));
      }
    }
  }

  // This rank sends its operands or receives its results.
  void CheckSendRecv(const Instruction& i, const Collective& c, const std::string& what) const {
    const int64_t group = program_.mesh.GroupSize(c.axes);
    if (c.from < 0 || c.to < 0 || c.from >= group || c.to >= group || c.from == c.to) {
      Fail(StrCat(what, " goes from member ", c.from, " to member ", c.to, " of ", group));
    }
    const int64_t me = program_.mesh.GroupIndex(program_.rank, c.axes);
    if (me != (i.results.empty() ? c.from : c.to) || i.operands.empty() == i.results.empty()) {
      Fail(StrCat(what, " has ", i.operands.size(), " operands and ", i.results.size(),
                  " results on member ", me, ", and it goes from ", c.from, " to ", c.to));
    }
    for (int b : i.results.empty() ? i.operands : i.results) {
      if (At(b).type.dtype == c.dtype) continue;
      Fail(StrCat(what, " moves ", DTypeName(At(b).type.dtype), " by a collective of ",
                  DTypeName(c.dtype)));
    }
  }

  void CheckPiece(const NamedBuffer& n, const std::string& what) const {
    const PieceOf& p = n.piece;
    if (p.whole.empty()) return;
    const TensorType& type = At(n.buffer).type;
    if (p.dim < 0 || p.dim >= type.rank() || p.start < 0 || p.start > p.whole_size ||
        p.whole_size - p.start < type.shape[p.dim]) {
      Fail(StrCat(what, " is no piece of dim ", p.dim, " of '", p.whole, "'"));
    }
  }

  void CheckNamed(const std::vector<NamedBuffer>& list, std::string_view kind, Space space) {
    for (const NamedBuffer& n : list) {
      std::string what = StrCat(kind, " '", n.name, "'");
      CheckId(n.buffer, [&] { return what; });
      const Buffer& b = At(n.buffer);
      if (b.space != space || b.alias_of >= 0) {
        Fail(StrCat(what, " is buffer ", n.buffer, ", which is not ", kind, " memory"));
      }
      CheckPiece(n, what);
      if (!named_.emplace(std::pair(space, b.name), b.bytes).second) {
        Fail(StrCat(what, ": buffer ", n.buffer, " is one that another ", kind, " has"));
      }
    }
  }

  // Every buffer outside the arena and the constants gets its memory by its name.
  void CheckNamedRoots() const {
    for (int i = 0; i < NumBuffers(); ++i) {
      const Buffer& b = At(i);
      if (b.alias_of >= 0 || (b.space != Space::kState && b.space != Space::kInput)) continue;
      auto it = named_.find({b.space, b.name});
      if (it == named_.end()) {
        Fail(StrCat("buffer ", i, " is of '", b.name, "', which is no state or input"));
      }
      if (it->second != b.bytes) {
        Fail(StrCat("buffer ", i, " has ", b.bytes, " bytes, and '", b.name, "' ", it->second));
      }
    }
  }

  const Program& program_;
  const std::string& where_;
  std::vector<int> roots_;
  std::set<int> collective_ids_;
  std::map<std::pair<Space, std::string>, int64_t> named_;
};

}  // namespace

void ProgramBoundsError(const std::string& where, std::string what) {
  throw Diagnostic("E3004", ExitCode::kVerification, where, std::move(what),
                   "compile the plan again; if it comes back, report it");
}

void CheckProgramBounds(const Program& program, const std::string& where) {
  BoundsChecker(program, where).Check();
}

}  // namespace shardc
