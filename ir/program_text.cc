#include <string_view>

#include "ir/program.h"
#include "ir/text.h"

namespace shardc {

std::string_view CollectiveKindName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kSendRecv:
      return "send_recv";
  }
  return "?";
}

namespace {

std::string TensorText(const HostTensor& t) {
  std::string out = StrCat(DTypeName(t.dtype()), ShapeToString(t.shape()));
  constexpr int64_t kMost = 8;
  if (t.num_elements() > kMost) return out + "{...}";
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    out += i ? ", " : "{";
    out += IsFloat(t.dtype()) ? AttributeToString(t.AsDouble(i)) : std::to_string(t.AsInt(i));
  }
  return out + (t.num_elements() ? "}" : "{}");
}

class ProgramPrinter {
 public:
  explicit ProgramPrinter(const Program& program) : program_(program) {}

  std::string Print() {
    out_ = StrCat("program version ", program_.version, "\nmesh ",
                  program_.mesh.num_axes() ? program_.mesh.ToString() : "of one rank", "\nrank ",
                  program_.rank, " of ", program_.mesh.num_ranks(), "\narena ",
                  program_.arena_bytes, " bytes, constants ", program_.constants.size(), " bytes, ",
                  program_.buffers.size(), " buffers, ", program_.instructions.size(),
                  " instructions, ", program_.collectives.size(), " collectives\n");
    PrintNamed("state", program_.states);
    PrintNamed("input", program_.inputs);
    for (const Instruction& i : program_.instructions) PrintInstruction(i);
    PrintNamed("output", program_.outputs);
    return std::move(out_);
  }

 private:
  const Buffer& At(int id) const { return program_.buffers[id]; }

  std::string Place(const Buffer& b) const {
    std::string out;
    switch (b.space) {
      case Space::kArena:
        out = StrCat("@arena+", b.offset);
        break;
      case Space::kState:
        out = "@state " + Quoted(b.name);
        break;
      case Space::kInput:
        out = "@input " + Quoted(b.name);
        break;
      case Space::kConstant:
        out = StrCat("@constants+", b.offset);
        break;
    }
    return b.alias_of < 0 ? out : StrCat(out, " alias of %", b.alias_of);
  }

  std::string Describe(const Buffer& b) const {
    std::string local =
        b.local_shape == b.type.shape ? "" : " local " + ShapeToString(b.local_shape);
    return TypeToString(b.type, program_.mesh) + local + " " + Place(b);
  }

  void PrintNamed(std::string_view kind, const std::vector<NamedBuffer>& list) {
    for (const NamedBuffer& n : list) {
      out_ += StrCat(kind, " ", Quoted(n.name), " = %", n.buffer, " : ", Describe(At(n.buffer)));
      if (!n.piece.whole.empty()) {
        out_ +=
            StrCat(" of ", Quoted(n.piece.whole), " dim ", n.piece.dim, " from ", n.piece.start);
      }
      out_ += "\n";
    }
  }

  static std::string Ids(const std::vector<int>& ids) {
    std::string out;
    for (int id : ids) out += (out.empty() ? "%" : ", %") + std::to_string(id);
    return out;
  }

  std::string AttributesText(const Instruction& i) const {
    std::string out;
    auto add = [&](std::string_view name, const std::string& value) {
      out += StrCat(out.empty() ? " {" : ", ", name, " = ", value);
    };
    for (const auto& [name, value] : i.attrs.entries()) {
      const TensorPtr* tensor = std::get_if<TensorPtr>(&value);
      add(name, tensor ? TensorText(**tensor) : AttributeToString(value));
    }
    if (i.phase != Phase::kForward) add("phase", std::string(PhaseName(i.phase)));
    if (!i.site.empty()) add("site", Quoted(i.site));
    return out.empty() ? out : out + "}";
  }

  std::string CollectiveText(const Collective& c) const {
    return StrCat(" collective #", c.id, " ", CollectiveKindName(c.kind), c.max ? " max" : "",
                  " over ", Join(program_.mesh.Names(c.axes), ","),
                  c.from >= 0 ? StrCat(" from ", c.from, " to ", c.to) : "", " of ", c.elements,
                  " ", DTypeName(c.dtype));
  }

  void PrintInstruction(const Instruction& i) {
    if (!i.results.empty()) out_ += Ids(i.results) + " = ";
    out_ += i.op;
    if (!i.operands.empty()) out_ += " " + Ids(i.operands);
    out_ += AttributesText(i);
    if (i.collective >= 0) out_ += CollectiveText(program_.collectives[i.collective]);
    for (size_t k = 0; k < i.results.size(); ++k) {
      out_ += (k ? ", " : " : ") + Describe(At(i.results[k]));
    }
    if (i.scratch >= 0) {
      out_ += StrCat(" scratch %", i.scratch, " ", At(i.scratch).bytes, " bytes ",
                     Place(At(i.scratch)));
    }
    out_ += "\n";
  }

  const Program& program_;
  std::string out_;
};

}  // namespace

std::string ProgramToText(const Program& program) { return ProgramPrinter(program).Print(); }

}  // namespace shardc
