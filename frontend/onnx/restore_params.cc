#include "frontend/onnx/restore_params.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "frontend/onnx/affine.h"
#include "frontend/onnx/find_origins.h"
#include "frontend/onnx/names.h"
#include "frontend/onnx/vector_pieces.h"
#include "ir/builder.h"
#include "ir/contains.h"
#include "ir/converted_source.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

class Restorer {
 public:
  Restorer(Graph& graph, const ModuleParams& module, const WrittenDown& written)
      : graph_(graph), module_(module), written_(written), finder_(module) {}

  void Run() {
    std::vector<Op*> others;
    for (Op* param : graph_.Params()) {
      if (!graph_.sources.contains(param->attrs.String("name"))) continue;
      (IsOwn(param) ? own_ : others).push_back(param);
    }
    std::vector<std::pair<Op*, std::vector<Origin>>> telling;
    for (Op* param : others) {
      if (IsTelling(Data(param))) {
        telling.emplace_back(param, Origins(param));
      } else if (!RestoreElements(param) && !RestoreFunction(param) && !RestoreByUses(param)) {
        untold_.push_back(param);
      }
    }
    // Of copies that each have a tensor in the file nobody can say which is which.
    std::map<std::string, int> claims;
    for (const auto& [param, origins] : telling) {
      for (const Origin& o : origins) ++claims[o.name];
    }
    for (const auto& [param, origins] : telling) {
      const bool copies = origins.size() > 1 && claims[origins[0].name] > 1;
      if (origins.empty() ? RestoreFunction(param) || RestorePieces(param) || RestoreAffine(param)
                          : !copies && Restore(param, origins))
        continue;
      left_.push_back(param->attrs.String("name"));
    }
    for (Op* param : untold_) {
      const std::string name = param->attrs.String("name");
      if (!RestoreTied(param)) left_.push_back(name);
    }
    if (own_.empty() && restored_.empty()) {
      throw Diagnostic("E1403", ExitCode::kBadModel, module_.where,
                       "none of its tensors is a parameter of the model",
                       "give the state_dict() of the module as it was exported");
    }
    ForgetAliases();
    for (Op* param : own_) FindTied(param);
    AddNotes();
  }

 private:
  Squeezed Data(const Op* param) const {
    const TensorType& type = param->out();
    return {graph_.sources.at(param->attrs.String("name")), type.dtype, type.dtype, type.shape};
  }

  // The exporter left it as it was.
  bool IsOwn(const Op* param) const {
    const std::string& name = param->attrs.String("name");
    const auto own = module_.tensors.find(name);
    if (own == module_.tensors.end() || own->second.shape != param->out().shape) return false;
    if (param->attrs.Has("merged")) {  // its numbers may be others, and its uses those of several
      const Squeezed data = Data(param);
      return IsTelling(data) && IsMadeOf(data, DataOf(own->second, data.type()), {});
    }
    if (!SameBits(Corner(Data(param)), Corner(DataOf(own->second, param->out().dtype)))) {
      throw Diagnostic("E1403", ExitCode::kBadModel, module_.where,
                       StrCat("'", name, "' has other numbers than in the model"),
                       "give the state_dict() of the module as it was exported; run takes other "
                       "weights with --load");
    }
    return true;
  }

  bool Restore(Op* param, const std::vector<Origin>& all) {
    if (!CanBe(graph_, module_, *param, all[0].name)) return false;
    graph_.ReplaceAllUses(param->result(), MadeAgain(param, all));
    KeepNames(*param, all[0]);
    Forget(param, all[0]);
    return true;
  }

  // The exporter's of what is equal to the module's tensor, where the module's file lacks them:
  // save_pretrained writes a tied tensor once.
  void KeepNames(const Op& param, const Origin& of) const {
    Op* whole = graph_.FindState(of.name);
    const Shape& shape = param.out().shape;
    const bool as_it_was = !of.turned && of.rows.empty() && shape == whole->out().shape;
    const bool matrix = of.turned && shape == Turned(whole->out().shape);
    if (of.affine != Affine() || of.function || !(as_it_was || matrix)) return;
    Strings names = {param.attrs.String("transpose_of", "")};
    if (as_it_was) {
      names = param.attrs.StringList("aliases", {});
      names.push_back(param.attrs.String("name"));
      const Strings unlike = param.attrs.StringList("source_aliases", {});
      std::erase_if(names, [&](const std::string& name) { return Contains(unlike, name); });
    }
    Strings aliases = whole->attrs.StringList("aliases", {});
    for (const std::string& name : names) {
      const bool known = module_.tensors.contains(name) || Contains(aliases, name);
      if (!known && IsOfModule(name)) aliases.push_back(name);
    }
    if (!aliases.empty()) whole->attrs.Set("aliases", std::move(aliases));
  }

  // TorchScript lists no parameters, and keeps the names of those that it left as they were.
  bool IsOfModule(const std::string& name) const {
    return written_.listed.empty() ? !IsMadeUp(name) : written_.listed.contains(name);
  }

  // Of data that say nothing: what reads it, or else the exporter, has to say what each use was. A
  // new model's equal vectors may be one tensor of the file.
  bool RestoreByUses(Op* param) {
    Value* value = param->result();
    if (value->users.empty() || graph_.IsOutput(value)) return false;
    const auto made = written_.made_by.find(param->attrs.String("name"));
    if (made != written_.made_by.end() && !made->second.keeps_values) return false;
    std::vector<Origin> found = finder_.AsWhole(Data(param), false);
    const std::vector<Origin> plus_one = finder_.AsWhole(Data(param), true);
    found.insert(found.end(), plus_one.begin(), plus_one.end());
    const std::vector<Op*> users = value->users;
    const auto of_users = OriginsOfUses(graph_, module_, *param, found);
    if (!of_users) return false;
    std::optional<Origin> other;
    for (size_t i = 0; i < users.size(); ++i) {
      const std::optional<Origin>& of = (*of_users)[i];
      if (!of) continue;
      graph_.ReplaceUses(users[i], value, MadeAgain(param, {*of}));
      if (!other) other = of;
      if (IsSuspect(*param, *of)) suspects_.emplace_back(param->attrs.String("name"), of->name);
    }
    if (!value->users.empty()) {
      param->attrs.Erase("merged");  // those are what the other uses are
      own_.push_back(param);
      if (other) restored_.emplace_back(param->attrs.String("name"), *other);
    } else {
      Forget(param, *other);
    }
    return true;
  }

  // What TorchScript left as it was mostly has its name: of equal elements a multiple, as of zeros,
  // looks the same.
  bool IsSuspect(const Op& param, const Origin& of) const {
    return IsMadeUp(param.attrs.String("name")) && !of.turned && of.affine == Affine() &&
           module_.tensors.at(of.name).shape == param.out().shape;
  }

  bool RestoreElements(Op* param) {
    const std::vector<Origin> found = AsElements(param);
    return !found.empty() && Restore(param, found);
  }

  // Of the one tensor that the exporter took it from.
  std::vector<Origin> AsElements(const Op* param) const {
    const auto from = written_.taken_from.find(param->attrs.String("name"));
    if (from == written_.taken_from.end()) return {};
    return finder_.AsElements(Data(param), from->second);
  }

  // What a function that the exporter names made of a parameter. Layers that began equal have one
  // tensor in the file: each of its uses is of its own module's parameter, which has to be one.
  bool RestoreFunction(Op* param) {
    const auto made = written_.made_by.find(param->attrs.String("name"));
    if (made == written_.made_by.end() || graph_.IsOutput(param->result())) return false;
    const auto how = MadeOfParam(param, made->second);
    if (!how) return false;
    const Origin& first = *how;
    const Squeezed data = DataOf(module_.tensors.at(first.name), param->out().dtype);
    std::map<std::string, std::vector<Op*>> users;
    for (Op* user : param->result()->users) {
      Strings own;
      for (const auto& [name, tensor] : module_.tensors) {
        const bool lost = name.starts_with(user->site + ".") && graph_.FindState(name) == nullptr;
        if (lost && IsMadeOf(data, DataOf(tensor, data.type()), {})) own.push_back(name);
      }
      if (own.size() > 1) return false;
      users[own.empty() ? first.name : own[0]].push_back(user);
    }
    const bool telling = IsTelling(Data(param));
    if (made->second.several && !telling) return false;
    for (const auto& [name, of] : users) {
      if (!CanBe(graph_, module_, *param, name)) return false;
      if (of.size() > 1 && !telling) return false;  // one may be of what became the same numbers
    }
    for (const auto& [name, of] : users) {
      Origin origin = first;
      origin.name = name;
      Value* again = MadeAgain(param, {origin});
      for (Op* user : of) graph_.ReplaceUses(user, param->result(), again);
    }
    Forget(param, first);
    return true;
  }

  // What vectors of the module and zeros were put together to, or what is a part of one.
  bool RestorePieces(Op* param) {
    const Squeezed made = Data(param);
    if (made.shape().size() != 1) return false;
    auto [elements, is_new] = elements_.try_emplace(made.type(), made.type());
    for (const auto& [name, tensor] : module_.tensors) {
      const Squeezed vector = DataOf(tensor, made.type());
      if (is_new && vector.shape().size() == 1) elements->second.Add(name, vector);
    }
    const std::vector<VectorPiece> pieces = elements->second.PiecesOf(made);
    Origin first;
    for (const VectorPiece& piece : pieces) {
      if (!piece.name.empty() && !CanBe(graph_, module_, *param, piece.name)) return false;
      if (first.name.empty()) first.name = piece.name;
      first.rows.push_back(piece.begin);
    }
    if (first.name.empty()) return false;
    Builder b(graph_, param);
    std::vector<Value*> values;
    for (const auto& [name, begin, end] : pieces) {
      if (name.empty()) {
        HostTensor zeros(made.type(), {end - begin});
        std::fill_n(zeros.raw(), zeros.bytes(), std::byte{0});
        values.push_back(b.Constant(std::move(zeros)));
        continue;
      }
      Value* whole = OfModule(param, {{name}});
      whole = b.Reshape(whole, {whole->type.num_elements()});
      values.push_back(b.Slice(whole, 0, begin, end));
    }
    Value* all = values[0];
    if (values.size() > 1) all = b.Make("concat", std::move(values), {{"axis", int64_t{0}}});
    graph_.ReplaceAllUses(param->result(), b.Reshape(all, param->out().shape));
    Forget(param, first);
    return true;
  }

  // Which function of its parameter the tensor is, or which multiple.
  std::optional<Origin> MadeOfParam(const Op* param, const ComputedFrom& from) const {
    const auto tensor = module_.tensors.find(from.param);
    const Squeezed made = Data(param);
    if (tensor == module_.tensors.end() || IsHalf(made.type())) return std::nullopt;
    const Squeezed of = DataOf(tensor->second, made.type());
    Origin origin{from.param};
    origin.function = FunctionOf(made, of, from.functions);
    if (origin.function) return origin;
    if (!from.scaled) return std::nullopt;
    const auto affine = AffineOf(made, of, false, true);
    if (!affine) return std::nullopt;
    origin.affine = *affine;
    return origin;
  }

  // What is the module's in other dims, or of other numbers. A number that itself was computed of
  // the tensor, as its norm, is none: that has more digits, where the exporter says nothing.
  bool RestoreAffine(Op* param) {
    const std::string& name = param->attrs.String("name");
    if (written_.of_functions.contains(name)) return false;
    const std::vector<Origin> found = finder_.AsAffine(Data(param));
    if (found.size() != 1) return false;
    const bool told = written_.made_by.contains(name);
    return (told || IsOfProgram(found[0].affine)) && Restore(param, found);
  }

  // A module's bias that is also that of one of its parts ("head.bias", "head.decoder.bias"), where
  // the module's file has the one name and the model's file the other.
  bool RestoreTied(Op* param) {
    const std::string& name = param->attrs.String("name");
    if (module_.tensors.contains(name) || !written_.listed.contains(name)) return false;
    std::set<std::string> known;
    for (const Op* other : graph_.Params()) {
      const Strings aliases = other->attrs.StringList("aliases", {});
      known.insert(other->attrs.String("name"));
      known.insert(aliases.begin(), aliases.end());
    }
    auto is_around = [&](const Origin& o) {
      const std::string part = LastPart(o.name);
      const std::string module = o.name.substr(0, o.name.size() - part.size());
      return part == LastPart(name) && name.starts_with(module) && !known.contains(o.name) &&
             module_.tensors.at(o.name).shape == param->out().shape;
    };
    std::vector<Origin> found = finder_.AsWhole(Data(param), false);
    std::erase_if(found, std::not_fn(is_around));
    return found.size() == 1 && Restore(param, found);
  }

  // What the parameter is, made of the first of tensors that are equal.
  Value* MadeAgain(Op* param, const std::vector<Origin>& all) {
    Builder b(graph_, param);
    return MakeOf(b, OfModule(param, all), all[0], param->out());
  }

  // The first of tensors that are equal, in the place of a parameter of this one's type.
  Value* OfModule(Op* param, const std::vector<Origin>& all) {
    const ModuleParam& tensor = module_.tensors.at(all[0].name);
    const TensorType& type = param->out();
    Op* whole = graph_.FindState(all[0].name);
    if (whole == nullptr) {
      Builder b(graph_, param);
      Attributes more;
      Strings aliases;
      for (size_t i = 1; i < all.size(); ++i) aliases.push_back(all[i].name);
      if (!aliases.empty()) more.Set("aliases", std::move(aliases));
      whole = b.Param(all[0].name, type.dtype, tensor.shape, std::move(more))->producer;
      graph_.sources[all[0].name] =
          std::make_shared<ConvertedSource>(tensor.source, tensor.dtype, type.dtype);
    }
    graph_.MoveBefore(whole, graph_.ops().front().get());
    return whole->result();
  }

  void Forget(Op* param, const Origin& of) {
    const std::string name = param->attrs.String("name");
    restored_.emplace_back(name, of);
    graph_.sources.erase(name);
    graph_.Erase(param);
  }

  // What the parameter, whose data tell, may be, tensors of the same data and shape; of a tied one
  // what the graph has first. Empty where that is not certain.
  std::vector<Origin> Origins(const Op* param) {
    const Squeezed made = Data(param);
    std::vector<Origin> found = finder_.AsWhole(made, false);
    if (found.empty()) found = finder_.AsWhole(made, true);
    if (found.empty()) found = finder_.AsRows(made);
    if (found.empty()) found = AsElements(param);
    // What the exporter wrote of it.
    const Strings aliases = param->attrs.StringList("aliases", {});
    auto named = [&](const Origin& o) { return Contains(aliases, o.name); };
    if (std::ranges::any_of(found, named)) std::erase_if(found, std::not_fn(named));
    const bool alike = std::ranges::all_of(found, [&](const Origin& o) {
      return o.turned == found[0].turned && o.rows == found[0].rows &&
             o.across == found[0].across &&
             module_.tensors.at(o.name).shape == module_.tensors.at(found[0].name).shape;
    });
    if (!alike) return {};
    std::ranges::stable_partition(
        found, [&](const Origin& o) { return graph_.FindState(o.name) != nullptr; });
    return found;
  }

  // A tensor that is nowhere in the graph, and equal: the two are tied.
  void FindTied(Op* param) const {
    const Squeezed data = Data(param);
    Strings names = param->attrs.StringList("aliases", {});
    const size_t known = names.size();
    for (const auto& [name, tensor] : module_.tensors) {
      if (tensor.shape != param->out().shape || named_.contains(name)) continue;
      if (IsMadeOf(data, DataOf(tensor, data.type()), {})) names.push_back(name);
    }
    if (names.size() > known && IsTelling(data)) param->attrs.Set("aliases", std::move(names));
  }

  // A name is that of one parameter.
  void ForgetAliases() {
    for (Op* param : graph_.Params()) {
      named_.insert(param->attrs.String("name"));
      for (const char* list : {"aliases", "source_aliases"}) {
        Strings names = param->attrs.StringList(list, {});
        if (std::erase_if(names, [&](const auto& n) { return graph_.FindState(n) != nullptr; }) > 0)
          param->attrs.Set(list, names);
        named_.insert(names.begin(), names.end());
      }
    }
  }

  void AddNotes() {
    if (!restored_.empty()) {
      const auto& [name, of] = restored_[0];
      std::string how = of.turned          ? " transposed"
                        : !of.rows.empty() ? ", a part of it"
                        : of.function      ? StrCat(" after ", of.function->name)
                                           : "";
      if (of.affine.times != 1) how += StrCat(" times ", of.affine.times);
      if (of.affine.plus != 0) how += StrCat(" plus ", of.affine.plus);
      graph_.notes.push_back(StrCat(module_.where, " has ",
                                    Counted(std::ssize(restored_), "tensor"),
                                    " of which the exporter made others: '", name, "' is '",
                                    of.name, "'", how, restored_.size() > 1 ? ", the first" : ""));
    }
    if (!suspects_.empty()) {
      const auto& [name, of] = suspects_[0];
      graph_.notes.push_back(StrCat(
          "'", name, "' of the model's file is taken for '", of, "' as it is",
          suspects_.size() > 1
              ? StrCat(", and ", Counted(std::ssize(suspects_) - 1, "other"), " likewise")
              : "",
          ": of elements so few of which differ a multiple would look the same, and has another "
          "gradient (an export of trained weights tells)"));
    }
    if (!left_.empty()) {
      graph_.notes.push_back(StrCat(
          module_.where, " does not tell which of its tensors '", left_[0],
          "' of the model's file is",
          left_.size() > 1 ? StrCat(", nor of ", Counted(std::ssize(left_) - 1, "other")) : ""));
    }
  }

  Graph& graph_;
  const ModuleParams& module_;
  const WrittenDown written_;
  OriginFinder finder_;
  std::map<DType, VectorElements> elements_;  // of the module's vectors
  std::vector<Op*> own_;                      // parameters that the exporter left as they were
  std::set<std::string> named_;
  std::vector<std::pair<std::string, Origin>> restored_;
  std::vector<Op*> untold_;  // of data that say nothing
  std::vector<std::pair<std::string, std::string>> suspects_;
  std::vector<std::string> left_;
};

}  // namespace

void RestoreParams(Graph& graph, const ModuleParams& module, const WrittenDown& written) {
  Restorer(graph, module, written).Run();
}

}  // namespace shardc::onnx_import
