#include <algorithm>
#include <set>
#include <unordered_map>

#include "ir/lexer.h"
#include "ir/op_def.h"
#include "ir/parse_literals.h"
#include "ir/text.h"

namespace shardc {
namespace {

// An op as read, before its types are checked.
struct ParsedOp {
  Token at;
  const OpDef* def = nullptr;
  std::vector<Token> results;
  std::vector<Value*> operands;
  std::vector<TensorType> types;
  Attributes attrs;
  Phase phase = Phase::kForward;
  Belonging belonging;
};

const AttrSpec* FindSpec(const OpDef& def, std::string_view name) {
  auto it = std::find_if(def.attrs.begin(), def.attrs.end(),
                         [&](const AttrSpec& a) { return a.name == name; });
  return it == def.attrs.end() ? nullptr : &*it;
}

// A result's name is a number when it has none.
std::string NameHint(const Token& token) {
  std::string_view name = token.text();
  bool number = !token.quoted &&
                std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
  return number ? std::string() : std::string(name);
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : lex_(text, file), literals_(lex_) {}

  Graph Run() {
    if (lex_.PeekIs(Token::kWord) && lex_.Peek().raw == "mesh") ParseMesh();
    if (lex_.PeekIs(Token::kWord) && lex_.Peek().raw == "pipeline") ParsePipeline();
    ParseHeader();
    while (!lex_.Accept("}")) ParseOp();
    if (!lex_.PeekIs(Token::kEnd)) lex_.Unexpected(lex_.Peek(), "the end of the text");
    for (const auto& [name, token] : outputs_) graph_.outputs.push_back({name, Find(token)});
    return std::move(graph_);
  }

 private:
  void ParseMesh() {
    Token at = lex_.Take();
    std::vector<MeshAxis> axes;
    lex_.Expect("[");
    while (!lex_.PeekIs("]")) {
      Token name = lex_.Take();
      bool word = name.kind == Token::kWord || name.kind == Token::kNumber;
      if (!word) lex_.Unexpected(name, "the name of a mesh axis");
      lex_.Expect("=");
      axes.push_back({std::string(name.raw), lex_.ExpectInt("the size of the axis")});
      if (!lex_.Accept(",")) break;
    }
    lex_.Expect("]");
    try {
      graph_.mesh = Mesh(std::move(axes));
    } catch (const Diagnostic& d) {
      lex_.Fail(at, "the mesh does not fit: " + d.message());
    }
  }

  void ParsePipeline() {
    lex_.ExpectWord("pipeline");
    Token name = lex_.Take();
    if (!graph_.mesh.FindAxis(name.raw)) lex_.Unexpected(name, "an axis of the mesh");
    graph_.pipeline_axis = name.raw;
  }

  void ParseHeader() {
    lex_.ExpectWord("graph");
    lex_.Expect("@");
    Token name = lex_.Take();
    bool named = name.kind == Token::kWord || name.kind == Token::kString;
    if (!named) lex_.Unexpected(name, "the graph's name");
    graph_.name = name.text();
    lex_.Expect("(");
    while (!lex_.PeekIs(")")) {
      Token input = lex_.Expect(Token::kValue, "an input such as %x");
      lex_.Expect(":");
      Define(input, graph_.AddInput(std::string(input.text()), literals_.Type(graph_.mesh)));
      if (!lex_.Accept(",")) break;
    }
    lex_.Expect(")");
    lex_.Expect("->");
    lex_.Expect("(");
    while (!lex_.PeekIs(")")) {
      ParseOutput();
      if (!lex_.Accept(",")) break;
    }
    lex_.Expect(")");
    lex_.Expect("{");
  }

  // The values come later: see Run.
  void ParseOutput() {
    std::string name;
    bool named = !lex_.PeekIs(Token::kValue);
    if (named) {
      Token token = lex_.Take();
      bool good = token.kind == Token::kWord || token.kind == Token::kNumber ||
                  token.kind == Token::kString;
      if (!good) lex_.Unexpected(token, "an output such as %y or loss: %y");
      name = token.text();
      lex_.Expect(":");
    }
    Token value = lex_.Expect(Token::kValue, "a value such as %y");
    if (!named) name = value.text();
    outputs_.emplace_back(std::move(name), std::move(value));
  }

  void Define(const Token& token, Value* value) {
    if (!values_.emplace(token.text(), value).second) {
      lex_.Fail(token, StrCat("the name ", token.raw, " is taken"));
    }
  }

  Value* Find(const Token& token) const {
    auto it = values_.find(std::string(token.text()));
    if (it != values_.end()) return it->second;
    std::vector<std::string> names;
    for (const auto& [name, value] : values_) names.push_back(name);
    lex_.Fail(token, StrCat("there is no value ", token.raw, " before this"),
              DidYouMean(token.text(), names));
  }

  void ParseOp() {
    ParsedOp op;
    while (lex_.PeekIs(Token::kValue)) {
      op.results.push_back(lex_.Take());
      if (!lex_.Accept(",")) {
        lex_.Expect("=");
        break;
      }
      if (!lex_.PeekIs(Token::kValue)) lex_.Unexpected(lex_.Peek(), "the name of a result");
    }
    op.at = lex_.Expect(Token::kWord, op.results.empty() ? "an op or '}'" : "the name of an op");
    op.def = FindDef(op.at);
    ParseOperands(op);
    if (lex_.Accept("{")) ParseAttributes(op);
    if (lex_.Accept(":")) {
      do {
        op.types.push_back(literals_.Type(graph_.mesh));
      } while (lex_.Accept(","));
    }
    CheckOp(op);
    Add(op);
  }

  const OpDef* FindDef(const Token& name) const {
    try {
      return &GetOpDef(name.raw);
    } catch (const Diagnostic& d) {
      throw d.In(lex_.Where(name));
    }
  }

  void ParseOperands(ParsedOp& op) {
    const AttrSpec* name = FindSpec(*op.def, "name");
    if (name && name->required && name->kind == AttrKind::kString) {
      Token token = lex_.Expect(Token::kString, StrCat("the name of the ", op.def->name));
      op.attrs.Set("name", std::string(token.text()));
    }
    if (!lex_.PeekIs(Token::kValue)) return;
    do {
      op.operands.push_back(Find(lex_.Expect(Token::kValue, "an operand such as %x")));
    } while (lex_.Accept(","));
  }

  void ParseAttributes(ParsedOp& op) {
    std::set<std::string_view> seen;
    while (!lex_.PeekIs("}")) {
      Token name = lex_.Expect(Token::kWord, "the name of an attribute");
      lex_.Expect("=");
      if (!seen.insert(name.raw).second || op.attrs.Has(name.raw)) {
        lex_.Fail(name, StrCat("attribute '", name.raw, "' is given twice"));
      }
      if (name.raw == "phase") {
        op.phase = ParsePhase();
      } else if (name.raw == "site") {
        op.belonging.site = lex_.Expect(Token::kString, "a string").text();
      } else if (name.raw == "stage") {
        op.belonging.stage = ParseOrdinal("the number of a stage");
      } else if (name.raw == "virtual_stage") {
        op.belonging.virtual_stage = ParseOrdinal("the number of a virtual stage");
      } else if (name.raw == "microbatch") {
        op.belonging.microbatch = ParseOrdinal("the number of a microbatch");
      } else {
        op.attrs.Set(name.raw, literals_.Value(KindOf(*op.def, name)));
      }
      if (!lex_.Accept(",")) break;
    }
    lex_.Expect("}");
  }

  static constexpr int64_t kMostOrdinal = 1 << 24;  // an int holds multiples of it

  int ParseOrdinal(std::string_view expected) {
    Token token = lex_.Peek();
    int64_t n = lex_.ExpectInt(expected);
    if (n < 0 || n > kMostOrdinal) lex_.Unexpected(token, expected);
    return static_cast<int>(n);
  }

  Phase ParsePhase() {
    Token token = lex_.Expect(Token::kString, "a phase");
    for (Phase p : {Phase::kForward, Phase::kBackward, Phase::kOptimizer}) {
      if (token.text() == PhaseName(p)) return p;
    }
    lex_.Unexpected(token, "\"forward\", \"backward\" or \"optimizer\"");
  }

  AttrKind KindOf(const OpDef& def, const Token& name) const {
    if (const AttrSpec* spec = FindSpec(def, name.raw)) return spec->kind;
    std::vector<std::string_view> names = {"phase", "site", "stage", "virtual_stage", "microbatch"};
    for (const AttrSpec& a : def.attrs) names.push_back(a.name);
    lex_.Fail(name, StrCat("op '", def.name, "' has no attribute '", name.raw, "'"),
              DidYouMean(name.raw, names));
  }

  [[noreturn]] void Mismatch(const ParsedOp& op, const std::string& what) const {
    throw Diagnostic("E1101", ExitCode::kBadModel,
                     StrCat(lex_.Where(op.at), ": op '", op.def->name, "'"), what);
  }

  void CheckOp(const ParsedOp& op) const {
    const OpDef& def = *op.def;
    for (const AttrSpec& a : def.attrs) {
      if (a.required && !op.attrs.Has(a.name)) {
        lex_.Fail(op.at, StrCat("op '", def.name, "' lacks its attribute '", a.name, "'"));
      }
    }
    if (op.results.size() != op.types.size()) {
      lex_.Fail(op.at, StrCat("the op has ", op.results.size(), " results but ", op.types.size(),
                              " types"));
    }
    if (!def.Takes(op.operands.size())) {
      Mismatch(op, StrCat("has ", op.operands.size(), " operands"));
    }
    if (def.infer) return CheckTypes(op);
    if (def.is_state && op.types.size() != 1) Mismatch(op, "has exactly one result");
  }

  void CheckTypes(const ParsedOp& op) const {
    std::vector<TensorType> inferred;
    try {
      inferred = InferResults(*op.def, op.operands, op.attrs);
    } catch (const Diagnostic& d) {
      throw d.In(lex_.Where(op.at));
    }
    if (inferred.size() != op.types.size()) {
      Mismatch(op, StrCat("has ", inferred.size(), " results, not ", op.types.size()));
    }
    for (size_t i = 0; i < inferred.size(); ++i) {
      if (inferred[i].SameTensor(op.types[i])) continue;
      Mismatch(op,
               StrCat("result ", op.results[i].raw, " is ", TypeToString(inferred[i], graph_.mesh),
                      ", not ", TypeToString(op.types[i], graph_.mesh)));
    }
  }

  void Add(ParsedOp& op) {
    Op* added =
        graph_.AddOp(*op.def, std::move(op.operands), std::move(op.types), std::move(op.attrs));
    added->phase = op.phase;
    added->line = op.at.line;
    added->BelongWith(op.belonging);
    for (size_t i = 0; i < op.results.size(); ++i) {
      added->results[i]->name = NameHint(op.results[i]);
      Define(op.results[i], added->results[i]);
    }
  }

  Lexer lex_;
  LiteralParser literals_;
  Graph graph_;
  std::unordered_map<std::string, Value*> values_;
  std::vector<std::pair<std::string, Token>> outputs_;
};

}  // namespace

Graph ParseGraph(std::string_view text, const std::string& file) {
  return Parser(text, file).Run();
}

}  // namespace shardc
