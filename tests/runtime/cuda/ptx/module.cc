#include "tests/runtime/cuda/ptx/module.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>

#include "tests/runtime/cuda/ptx/instructions.h"

namespace shardc::ptx {
namespace {

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::string_view Trim(std::string_view s) {
  while (!s.empty() && IsSpace(s.front())) s.remove_prefix(1);
  while (!s.empty() && IsSpace(s.back())) s.remove_suffix(1);
  return s;
}

// The first word, which is taken away.
std::string_view Word(std::string_view& s) {
  s = Trim(s);
  size_t n = 0;
  while (n < s.size() && !IsSpace(s[n])) ++n;
  std::string_view word = s.substr(0, n);
  s = Trim(s.substr(n));
  return word;
}

// At commas that no bracket encloses.
std::vector<std::string_view> Split(std::string_view s) {
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= s.size(); ++i) {
    if (i == s.size() || (s[i] == ',' && depth == 0)) {
      std::string_view part = Trim(s.substr(begin, i - begin));
      if (!part.empty()) parts.push_back(part);
      begin = i + 1;
    } else {
      depth += s[i] == '{' || s[i] == '[' || s[i] == '(';
      depth -= s[i] == '}' || s[i] == ']' || s[i] == ')';
    }
  }
  return parts;
}

[[noreturn]] void Fail(int line, std::string_view what, std::string_view text) {
  throw std::runtime_error("PTX line " + std::to_string(line) + ": " + std::string(what) + " '" +
                           std::string(text.substr(0, 120)) + "'");
}

std::optional<uint64_t> Number(std::string_view s) {
  uint64_t bits = 0;
  int base = 10;
  bool minus = false;
  if (s.starts_with("0f") || s.starts_with("0d") || s.starts_with("0x")) {
    base = 16;
    s.remove_prefix(2);
  } else if (s.starts_with('-')) {
    minus = true;
    s.remove_prefix(1);
  }
  auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), bits, base);
  if (s.empty() || error != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return minus ? -bits : bits;
}

int64_t SizeOf(std::string_view type) {  // ".u64"
  size_t digits = type.find_first_of("0123456789");
  if (digits == std::string_view::npos) return 1;  // .pred
  return static_cast<int64_t>(*Number(type.substr(digits))) / 8;
}

// ".align 8 .b8 name[72]", ".u64 name"
struct Variable {
  std::string_view name, initial;
  int64_t bytes = 0, alignment = 1;
};
Variable ParseVariable(std::string_view s, int line) {
  Variable v;
  if (size_t equals = s.find('='); equals != std::string_view::npos) {
    v.initial = Trim(s.substr(equals + 1));
    s = s.substr(0, equals);
  }
  std::string_view word;
  while ((word = Word(s)).starts_with('.')) {
    if (word == ".align") {
      v.alignment = static_cast<int64_t>(Number(Word(s)).value_or(1));
    } else {
      v.bytes = SizeOf(word);
      v.alignment = std::max(v.alignment, v.bytes);
    }
  }
  v.name = word;
  if (size_t bracket = word.find('['); bracket != std::string_view::npos) {
    std::string_view count = word.substr(bracket + 1, word.size() - bracket - 2);
    auto n = count.empty() ? 0 : Number(count);
    if (!n) Fail(line, "array size", word);
    v.name = word.substr(0, bracket);
    v.bytes *= static_cast<int64_t>(*n);
  }
  return v;
}

int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Statements of a text, one after the other: up to ';', ':' of a label, or a brace that is none of
// an operand's.
class Statements {
 public:
  Statements(std::string_view text, int line) : text_(text), line_(line) {}
  // Empty at the end. `header` lets a statement end before a brace (a function's body).
  std::string_view Next(bool header = false) {
    Skip();
    begin_line_ = line_;
    size_t begin = at_;
    bool initial = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      line_ += c == '\n';
      initial |= c == '=';
      if (c == ';') return Trim(text_.substr(begin, at_++ - begin));
      if (c == ':' && (at_ + 1 == text_.size() || IsSpace(text_[at_ + 1]))) {
        ++at_;
        return Trim(text_.substr(begin, at_ - begin));
      }
      if (at_ == begin && (c == '{' || c == '}')) return text_.substr(at_++, 1);
      if (header && c == '{' && !initial) return Trim(text_.substr(begin, at_ - begin));
      if (c == '\n' && IsLine(text_.substr(begin, at_ - begin))) {
        return Trim(text_.substr(begin, at_ - begin));
      }
    }
    return Trim(text_.substr(begin));
  }
  // What stands in the braces that begin here.
  std::string_view Braces() {
    size_t begin = at_ + 1;
    int depth = 0;
    for (; at_ < text_.size(); ++at_) {
      line_ += text_[at_] == '\n';
      depth += text_[at_] == '{';
      depth -= text_[at_] == '}';
      if (depth == 0) return text_.substr(begin, at_++ - begin);
    }
    Fail(line_, "no end of", text_.substr(begin - 1));
  }
  bool AtBrace() const { return at_ < text_.size() && text_[at_] == '{'; }
  int line() const { return begin_line_; }
  int next_line() const { return line_; }

 private:
  static bool IsLine(std::string_view s) {  // directives without ';'
    s = Trim(s);
    return s.starts_with(".version") || s.starts_with(".target") || s.starts_with(".address_size");
  }
  void Skip() {
    while (at_ < text_.size()) {
      if (IsSpace(text_[at_])) {
        line_ += text_[at_++] == '\n';
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  int line_, begin_line_ = 0;
  size_t at_ = 0;
};

// Comments become spaces, so that lines keep their numbers.
void BlankComments(std::string& text) {
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != '/' || text[i + 1] != '/') continue;
    while (i < text.size() && text[i] != '\n') text[i++] = ' ';
  }
}

std::vector<std::byte> Bytes(const Variable& v, int line) {
  std::vector<std::byte> bytes(static_cast<size_t>(v.bytes));
  if (v.initial.empty()) return bytes;
  const std::vector<std::string_view> numbers = Split(v.initial.substr(1, v.initial.size() - 2));
  if (v.initial[0] != '{' || numbers.empty()) Fail(line, "initial value", v.initial);
  const size_t each = bytes.size() / numbers.size();
  for (size_t i = 0; i < numbers.size(); ++i) {
    auto n = Number(numbers[i]);
    if (!n || each > sizeof(*n)) Fail(line, "initial value", numbers[i]);
    std::memcpy(&bytes[i * each], &*n, each);
  }
  return bytes;
}

}  // namespace

Module::Module(std::string text) : text_(std::move(text)) {
  BlankComments(text_);
  Statements statements(text_, 1);
  for (std::string_view s; !(s = statements.Next(true)).empty();) {
    const int line = statements.line();
    const bool entry = s.find(".entry") != std::string_view::npos;
    if (!entry && s.find(".func") == std::string_view::npos) {
      if (s.find(".shared") != std::string_view::npos) {
        Variable v = ParseVariable(s.substr(s.find(".shared") + 7), line);
        shared_[std::string(v.name)] = {v.bytes, v.alignment};
      } else if (s.find(".global") != std::string_view::npos ||
                 s.find(".const") != std::string_view::npos) {
        const size_t type = s.find(".align");
        if (type == std::string_view::npos) Fail(line, "variable", s);
        Variable v = ParseVariable(s.substr(type), line);
        variables_[std::string(v.name)] = Bytes(v, line);
      } else if (!s.starts_with(".version") && !s.starts_with(".target") &&
                 !s.starts_with(".address_size")) {
        Fail(line, "unknown directive", s);
      }
      continue;
    }
    Function f;
    std::string_view rest = s.substr(s.find(entry ? ".entry" : ".func") + (entry ? 6 : 5));
    rest = Trim(rest);
    if (!entry && rest.starts_with('(')) {
      f.results = rest.substr(1, rest.find(')') - 1);
      rest = Trim(rest.substr(rest.find(')') + 1));
    }
    const size_t open = rest.find('('), close = rest.rfind(')');
    std::string name(Trim(rest.substr(0, open)));
    if (open != std::string_view::npos) {
      f.params = rest.substr(open + 1, close - open - 1);
      f.directives = rest.substr(close + 1);
    }
    if (!statements.AtBrace()) continue;  // declared, not defined
    f.line = statements.next_line();
    f.body = statements.Braces();
    (entry ? entries_ : functions_)[name] = f;
  }
}

std::vector<std::string> Module::names() const {
  std::vector<std::string> names;
  for (const auto& [name, f] : entries_) names.push_back(name);
  return names;
}

// Reads a kernel's body, and in their places those of the functions it calls.
class BodyParser {
 public:
  BodyParser(Module& module, Kernel& kernel) : module_(module), kernel_(kernel) {}

  void Run(const Module::Function& f) {
    kernel_.special.fill(-1);
    for (std::string_view text : Split(f.params)) {
      Variable v = ParseVariable(text.substr(text.find(".param") + 6), f.line);
      kernel_.param_bytes = RoundUp(kernel_.param_bytes, v.alignment);
      params_[std::string(v.name)] = kernel_.param_bytes;
      kernel_.params.push_back({kernel_.param_bytes, v.bytes});
      kernel_.param_bytes += v.bytes;
    }
    std::string_view directives = f.directives;
    while (!Trim(directives).empty()) {
      std::string_view word = Word(directives);
      if (word == ".maxntid" || word == ".reqntid") {
        std::string_view count = Word(directives);
        kernel_.most_threads =
            static_cast<int64_t>(Number(count.substr(0, count.find(','))).value_or(0));
      }
    }
    Scope scope;
    Body(f, scope);
    for (auto& [i, label] : branches_) {
      auto it = labels_.find(label);
      if (it == labels_.end()) Fail(kernel_.code[i].line, "no such label:", label);
      kernel_.code[i].target = it->second;
    }
    for (int slot : dynamic_) {
      kernel_.shared_bytes = RoundUp(kernel_.shared_bytes, 128);
      kernel_.constants[slot] = static_cast<uint64_t>(kSharedWindow + kernel_.shared_bytes);
    }
    kernel_.local_bytes = RoundUp(kernel_.local_bytes, 16);  // the next lane's begin there
    for (Instruction& i : kernel_.code) Decode(i);
  }

 private:
  // Names mean something else in a function that is called.
  struct Scope {
    std::string prefix;
    std::map<std::string, int, std::less<>> params;  // of calls, in local memory
  };

  void Body(const Module::Function& f, Scope& scope) {
    Statements statements(f.body, f.line);
    for (std::string_view s; !(s = statements.Next()).empty();) {
      line_ = statements.line();
      if (s == "{" || s == "}") continue;
      if (s.ends_with(':')) {
        labels_[scope.prefix + std::string(s.substr(0, s.size() - 1))] =
            static_cast<int>(kernel_.code.size());
      } else if (s.starts_with('.')) {
        Directive(s, scope);
      } else {
        Statement(s, scope);
      }
    }
    if (scope.prefix.empty()) {
      Instruction end;
      end.opcode = "ret";
      end.line = line_;
      kernel_.code.push_back(end);
    } else {
      labels_[scope.prefix + "end"] = static_cast<int>(kernel_.code.size());
    }
  }

  void Directive(std::string_view s, Scope& scope) {
    std::string_view rest = s;
    const std::string_view word = Word(rest);
    if (word == ".reg") {
      Word(rest);
      for (std::string_view name : Split(rest)) {
        registers_.insert(std::string(name.substr(0, name.find('<'))));
      }
    } else if (word == ".param") {
      Variable v = ParseVariable(rest, line_);
      scope.params[std::string(v.name)] = NewSlot();
      kernel_.locals_at[kernel_.slots - 1] = Place(v, kernel_.local_bytes);
    } else if (word == ".shared" || word == ".local") {
      Variable v = ParseVariable(rest, line_);
      const bool shared = word == ".shared";
      (shared ? shared_ : locals_)[std::string(v.name)] =
          Place(v, shared ? kernel_.shared_bytes : kernel_.local_bytes);
    } else if (word != ".pragma" && word != ".loc") {
      Fail(line_, "unknown directive", s);
    }
  }

  // Behind what is there.
  static int64_t Place(const Variable& v, int64_t& end) {
    const int64_t begin = RoundUp(end, v.alignment);
    end = begin + v.bytes;
    return begin;
  }

  void Statement(std::string_view s, Scope& scope) {
    Instruction i;
    i.line = line_;
    if (s.starts_with('@')) {
      std::string_view guard = Word(s).substr(1);
      i.unless = guard.starts_with('!');
      i.guard = Slot(i.unless ? guard.substr(1) : guard, scope);
    }
    i.opcode = Word(s);
    std::vector<std::string_view> operands = Split(s);
    if (i.opcode.starts_with("call")) return Call(operands, scope);
    if (i.opcode == "bra" || i.opcode == "bra.uni") {
      branches_[kernel_.code.size()] = scope.prefix + std::string(operands.at(0));
    } else if (i.opcode == "ret" && !scope.prefix.empty()) {
      i.opcode = "bra";
      branches_[kernel_.code.size()] = scope.prefix + "end";
    } else {
      for (size_t k = 0; k < operands.size(); ++k) {
        Operand(operands[k], scope, i);
        if (k == 0) i.results = i.slots;
      }
    }
    if (i.opcode.starts_with("cp.async") && i.slots == 4) {
      i.bytes = kernel_.constants.at(i.slot[2]);
      if (i.slot[2] != i.slot[3] || i.offset != 0) Fail(line_, "copy", s);
    }
    kernel_.code.push_back(i);
  }

  void Call(const std::vector<std::string_view>& operands, Scope& scope) {
    if (operands.size() != 3) Fail(line_, "call of", operands.at(0));
    auto it = module_.functions_.find(operands[1]);
    if (it == module_.functions_.end()) Fail(line_, "no such function:", operands[1]);
    const Module::Function& f = it->second;
    Scope inner;
    inner.prefix = scope.prefix + std::to_string(++calls_) + ":";
    auto bind = [&](std::string_view formal, std::string_view actual) {
      std::vector<std::string_view> formals = Split(formal),
                                    actuals = Split(actual.substr(1, actual.size() - 2));
      if (formals.size() != actuals.size()) Fail(line_, "call of", operands[1]);
      for (size_t k = 0; k < formals.size(); ++k) {
        Variable v = ParseVariable(formals[k].substr(6), line_);
        inner.params[std::string(v.name)] = scope.params.at(std::string(actuals[k]));
      }
    };
    bind(f.results, operands[0]);
    bind(f.params, operands[2]);
    const int line = line_;
    Body(f, inner);
    line_ = line;
  }

  void Add(Instruction& i, int slot) {
    if (i.slots == static_cast<int>(i.slot.size())) Fail(line_, "too many operands:", i.opcode);
    i.slot[static_cast<size_t>(i.slots++)] = slot;
  }

  void Operand(std::string_view s, const Scope& scope, Instruction& i) {
    if (s.starts_with('{')) {
      for (std::string_view part : Split(s.substr(1, s.size() - 2))) Operand(part, scope, i);
    } else if (s.starts_with('[')) {
      s = s.substr(1, s.size() - 2);
      if (size_t plus = s.find('+'); plus != std::string_view::npos) {
        auto offset = Number(s.substr(plus + 1));
        if (!offset) Fail(line_, "address", s);
        i.offset = static_cast<int64_t>(*offset);
        s = s.substr(0, plus);
      }
      Add(i, Slot(s, scope));
    } else if (size_t bar = s.find('|'); bar != std::string_view::npos) {
      Add(i, Slot(s.substr(0, bar), scope));
      Add(i, Slot(s.substr(bar + 1), scope));
    } else {
      Add(i, Slot(s, scope));
    }
  }

  int NewSlot() { return kernel_.slots++; }

  int Constant(uint64_t bits) {
    auto [it, is_new] = constants_.try_emplace(bits, kernel_.slots);
    if (is_new) kernel_.constants[NewSlot()] = bits;
    return it->second;
  }

  // "%r17" is declared as "%r<40>".
  bool IsRegister(std::string_view s) const {
    if (registers_.contains(s)) return true;
    while (!s.empty() && std::isdigit(static_cast<unsigned char>(s.back())) != 0)
      s.remove_suffix(1);
    return registers_.contains(s);
  }

  int SpecialSlot(std::string_view name) {
    static constexpr std::string_view kNames[] = {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x",
                                                  "%laneid"};
    for (size_t k = 0; k < kNoSpecial; ++k) {
      if (name != kNames[k]) continue;
      if (kernel_.special[k] < 0) kernel_.special[k] = NewSlot();
      return kernel_.special[k];
    }
    return -1;
  }

  int Slot(std::string_view s, const Scope& scope) {
    s = Trim(s);
    if (s == "_") return NewSlot();
    if (auto number = Number(s)) return Constant(*number);
    if (s == "WARP_SZ") return Constant(32);
    if (int special = SpecialSlot(s); special >= 0) return special;
    if (IsRegister(s)) {
      auto [it, is_new] = slots_.try_emplace(scope.prefix + std::string(s), kernel_.slots);
      if (is_new) NewSlot();
      return it->second;
    }
    if (auto param = scope.params.find(s); param != scope.params.end()) return param->second;
    auto [it, is_new] = symbols_.try_emplace(std::string(s), kernel_.slots);
    if (is_new) Symbol(s, NewSlot());
    return it->second;
  }

  // What the name of a variable is: its address.
  void Symbol(std::string_view s, int slot) {
    if (auto at = params_.find(s); at != params_.end()) {
      kernel_.params_at[slot] = at->second;
    } else if (at = locals_.find(s); at != locals_.end()) {
      kernel_.locals_at[slot] = at->second;
    } else if (at = shared_.find(s); at != shared_.end()) {
      kernel_.constants[slot] = static_cast<uint64_t>(kSharedWindow + at->second);
    } else if (auto of = module_.shared_.find(s); of != module_.shared_.end()) {
      const auto [bytes, alignment] = of->second;
      if (bytes == 0) return dynamic_.push_back(slot);
      kernel_.shared_bytes = RoundUp(kernel_.shared_bytes, alignment);
      kernel_.constants[slot] = static_cast<uint64_t>(kSharedWindow + kernel_.shared_bytes);
      kernel_.shared_bytes += bytes;
    } else if (auto v = module_.variables_.find(s); v != module_.variables_.end()) {
      kernel_.constants[slot] = reinterpret_cast<uintptr_t>(v->second.data());
    } else {
      Fail(line_, "unknown name", s);
    }
  }

  Module& module_;
  Kernel& kernel_;
  int line_ = 0, calls_ = 0;
  std::map<std::string, int, std::less<>> slots_, symbols_, labels_;
  std::set<std::string, std::less<>> registers_;  // as declared, without their number
  std::map<std::string, int64_t, std::less<>> params_, locals_, shared_;
  std::map<uint64_t, int> constants_;
  std::map<size_t, std::string> branches_;
  std::vector<int> dynamic_;
};

const Kernel* Module::Find(const std::string& name) {
  auto entry = entries_.find(name);
  if (entry == entries_.end()) return nullptr;
  std::unique_ptr<Kernel>& kernel = kernels_[name];
  if (!kernel) {
    auto made = std::make_unique<Kernel>();
    made->name = name;
    BodyParser(*this, *made).Run(entry->second);
    kernel = std::move(made);
  }
  return kernel.get();
}

}  // namespace shardc::ptx
