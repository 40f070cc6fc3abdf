#include "frontend/onnx/restore_params.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "frontend/onnx/origins.h"
#include "ir/builder.h"
#include "ir/contains.h"
#include "ir/converted_source.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"

namespace shardc::onnx_import {
namespace {

std::string LastPart(const std::string& name) { return name.substr(name.rfind('.') + 1); }

class Restorer {
 public:
  Restorer(Graph& graph, const ModuleParams& module, const WrittenDown& written)
      : graph_(graph), module_(module), written_(written) {}

  void Run() {
    std::vector<Op*> others;
    for (Op* param : graph_.Params()) {
      if (!graph_.sources.contains(param->attrs.String("name"))) continue;
      (IsOwn(param) ? own_ : others).push_back(param);
    }
    std::vector<std::pair<Op*, std::vector<Origin>>> telling;
    for (Op* param : others) {
      if (IsTelling(DataOf(param))) {
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
      if (origins.empty() ? RestoreFunction(param) : !copies && Restore(param, origins)) continue;
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
  Squeezed DataOf(const Op* param) const {
    const TensorType& type = param->out();
    return {graph_.sources.at(param->attrs.String("name")), type.dtype, type.dtype, type.shape};
  }
  static Squeezed DataOf(const ModuleParam& tensor, DType as) {
    return {tensor.source, tensor.dtype, as, tensor.shape};
  }

  // The exporter left it as it was.
  bool IsOwn(const Op* param) const {
    const std::string& name = param->attrs.String("name");
    const auto own = module_.tensors.find(name);
    if (own == module_.tensors.end() || own->second.shape != param->out().shape) return false;
    if (param->attrs.Has("merged")) {  // its numbers may be others, and its uses those of several
      const Squeezed data = DataOf(param);
      return IsTelling(data) && IsMadeOf(data, DataOf(own->second, data.type()), {});
    }
    if (!SameBits(Corner(DataOf(param)), Corner(DataOf(own->second, param->out().dtype)))) {
      throw Diagnostic("E1403", ExitCode::kBadModel, module_.where,
                       StrCat("'", name, "' has other numbers than in the model"),
                       "give the state_dict() of the module as it was exported; run takes other "
                       "weights with --load");
    }
    return true;
  }

  bool Restore(Op* param, const std::vector<Origin>& all) {
    if (!Fits(*param, all[0])) return false;
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
    if (of.plus_one || of.function || !(as_it_was || matrix)) return;
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
      if (!known && written_.listed.contains(name)) aliases.push_back(name);
    }
    if (!aliases.empty()) whole->attrs.Set("aliases", std::move(aliases));
  }

  // TorchScript's tensors without a name ("onnx::Add_7") have one after the module that reads
  // them, as if all were called "weight" or "bias".
  static bool IsGuess(const std::string& name) { return name.find("::") != name.npos; }

  // Of data that say nothing: what reads it, or else the exporter, has to say what each use was. A
  // new model's equal vectors may be one tensor of the file.
  bool RestoreByUses(Op* param) {
    const Squeezed made = DataOf(param);
    std::vector<Origin> found = OriginsAsWhole(made, false);
    const std::vector<Origin> plus_one = OriginsAsWhole(made, true);
    found.insert(found.end(), plus_one.begin(), plus_one.end());
    const Strings aliases = param->attrs.StringList("aliases", {});
    std::set<std::string> parts;  // "weight"
    for (const std::string& alias : aliases) parts.insert(LastPart(alias));
    const std::string own = param->attrs.String("name");
    auto is_own = [&](const Origin& o) {
      return o.name == own && !o.turned && !o.plus_one &&
             module_.tensors.at(own).shape == param->out().shape;
    };
    const auto as_own = std::ranges::find_if(found, is_own);
    const std::vector<Op*> users = param->result()->users;
    // What the exporter names, below the module of a use: of another one the same is meant.
    std::set<std::string> below;
    for (const Op* user : users) {
      for (const std::string& alias : aliases) {
        if (alias.starts_with(user->site + ".")) below.insert(alias.substr(user->site.size()));
      }
    }
    std::vector<Origin> of_users;
    int untold = 0;
    for (const Op* user : users) {
      auto fits = [&](const Origin& o) {
        if (!is_own(o) && !Fits(*param, o)) return false;
        if (users.size() == 1 && Contains(aliases, o.name)) return true;
        return o.name.starts_with(user->site + ".") &&
               (parts.empty() || parts.contains(LastPart(o.name)));
      };
      std::vector<Origin> fitting;
      std::ranges::copy_if(found, std::back_inserter(fitting), fits);
      if (fitting.size() > 1) {
        std::erase_if(fitting, [&](const Origin& o) {
          return !below.contains(o.name.substr(std::min(user->site.size(), o.name.size())));
        });
        if (fitting.size() != 1) return false;
      }
      if (fitting.empty() && IsGuess(own)) {
        std::ranges::copy_if(found, std::back_inserter(fitting), [&](const Origin& o) {
          return !o.plus_one && !o.turned && Fits(*param, o) &&
                 o.name == user->site + "." + LastPart(o.name);
        });
        if (fitting.size() > 1) return false;
      }
      if (fitting.empty() && as_own == found.end()) return false;
      untold += fitting.empty();
      of_users.push_back(fitting.empty() ? *as_own : fitting[0]);
      // Of two uses in one module, each may be of another one of its tensors.
      const Origin& chosen = of_users.back();
      auto is_rival = [&](const Origin& o) {
        return o.name != chosen.name && o.name.starts_with(user->site + ".") &&
               o.turned == chosen.turned && o.plus_one == chosen.plus_one &&
               graph_.FindState(o.name) == nullptr &&
               module_.tensors.at(o.name).shape == module_.tensors.at(chosen.name).shape;
      };
      const auto here = [&](const Op* other) { return other->site == user->site; };
      if (std::ranges::count_if(users, here) > 1 && std::ranges::any_of(found, is_rival)) {
        return false;
      }
    }
    // It has the name of one of its uses, and that may be the one that nothing tells.
    if (untold > 0 && std::ranges::count_if(of_users, is_own) > 1) return false;
    if (users.empty() || graph_.IsOutput(param->result())) return false;
    for (size_t i = 0; i < users.size(); ++i) {
      if (is_own(of_users[i])) continue;
      graph_.ReplaceUses(users[i], param->result(), MadeAgain(param, {of_users[i]}));
    }
    const auto other = std::ranges::find_if_not(of_users, is_own);
    if (!param->result()->users.empty()) {
      param->attrs.Erase("merged");  // those are what the other uses are
      own_.push_back(param);
      if (other != of_users.end()) restored_.emplace_back(own, *other);
    } else {
      Forget(param, *other);
    }
    return true;
  }

  bool RestoreElements(Op* param) {
    const std::vector<Origin> found = OriginsAsElements(param);
    return !found.empty() && Restore(param, found);
  }

  // What a function that the exporter names made of a parameter. Layers that began equal have one
  // tensor in the file: each of its uses is of its own module's parameter, which has to be one.
  bool RestoreFunction(Op* param) {
    const auto made = written_.made_by.find(param->attrs.String("name"));
    if (made == written_.made_by.end() || graph_.IsOutput(param->result())) return false;
    Origin first{made->second.param};
    first.function = FunctionOfParam(param, made->second);
    if (first.function == nullptr) return false;
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
    for (const auto& [name, of] : users) {
      if (!Fits(*param, {name})) return false;
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

  // Which function of its parameter the tensor is; null: none.
  const ElementFunction* FunctionOfParam(const Op* param, const ComputedFrom& from) const {
    const auto tensor = module_.tensors.find(from.param);
    const Squeezed made = DataOf(param);
    if (tensor == module_.tensors.end() || IsHalf(made.type())) return nullptr;
    return FunctionOf(made, DataOf(tensor->second, made.type()), from.functions);
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
    std::vector<Origin> found = OriginsAsWhole(DataOf(param), false);
    std::erase_if(found, std::not_fn(is_around));
    return found.size() == 1 && Restore(param, found);
  }

  // Whether the module's tensor may become a parameter of the type of `param`.
  bool Fits(const Op& param, const Origin& o) const {
    const Op* whole = graph_.FindState(o.name);
    return whole == nullptr ||
           (whole != &param &&
            whole->out().SameTensor({param.out().dtype, module_.tensors.at(o.name).shape}));
  }

  // What the parameter is, made of the first of tensors that are equal.
  Value* MadeAgain(Op* param, const std::vector<Origin>& all) {
    const ModuleParam& tensor = module_.tensors.at(all[0].name);
    const TensorType& type = param->out();
    Op* whole = graph_.FindState(all[0].name);
    Builder b(graph_, param);
    if (whole == nullptr) {
      Attributes more;
      Strings aliases;
      for (size_t i = 1; i < all.size(); ++i) aliases.push_back(all[i].name);
      if (!aliases.empty()) more.Set("aliases", std::move(aliases));
      whole = b.Param(all[0].name, type.dtype, tensor.shape, std::move(more))->producer;
      graph_.sources[all[0].name] =
          std::make_shared<ConvertedSource>(tensor.source, tensor.dtype, type.dtype);
    }
    graph_.MoveBefore(whole, graph_.ops().front().get());
    return Make(b, whole->result(), all[0], type);
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
    const Squeezed made = DataOf(param);
    std::vector<Origin> found = OriginsAsWhole(made, false);
    if (found.empty()) found = OriginsAsWhole(made, true);
    if (found.empty()) found = OriginsAsRows(made);
    if (found.empty()) found = OriginsAsElements(param);
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

  std::vector<Origin> OriginsAsWhole(const Squeezed& made, bool plus_one) {
    std::vector<Origin> found;
    const Corners& corners = CornersOf(made.type(), plus_one);
    for (bool turned : {false, true}) {
      if (turned && made.shape().size() < 2) continue;
      const HostTensor own = Corner(made);
      const auto alike = turned ? corners.find(KeyOf(Turned(made.shape()), Turned(own)))
                                : corners.find(KeyOf(made.shape(), own));
      if (alike == corners.end()) continue;
      for (const std::string& name : alike->second) {
        const Origin how{name, turned, plus_one, {}, 0};
        if (IsMadeOf(made, DataOf(module_.tensors.at(name), made.type()), how))
          found.push_back(how);
      }
    }
    return found;
  }

  // The module's tensors by their size and first elements.
  using Corners = std::unordered_map<std::string, std::vector<std::string>>;

  static std::string KeyOf(const Shape& shape, const HostTensor& corner) {
    return ShapeToString(shape) +
           std::string(reinterpret_cast<const char*>(corner.raw()), corner.bytes());
  }

  const Corners& CornersOf(DType type, bool plus_one) {
    auto [it, is_new] = corners_.try_emplace({type, plus_one});
    if (!is_new) return it->second;
    for (const auto& [name, tensor] : module_.tensors) {
      const Squeezed data = DataOf(tensor, type);
      HostTensor corner = Corner(data);
      if (plus_one) AddOne(corner);
      it->second[KeyOf(data.shape(), corner)].push_back(name);
    }
    return it->second;
  }

  // The last dim first, which it mostly is.
  std::vector<Origin> OriginsAsRows(const Squeezed& made) const {
    std::vector<Origin> found;
    for (size_t dim = made.shape().size(); dim-- > 0 && found.empty();) {
      std::optional<RowsAlong> along;
      for (const auto& [name, tensor] : module_.tensors) {
        const Squeezed matrix = DataOf(tensor, made.type());
        if (matrix.shape().empty() || matrix.shape().size() > 2) continue;
        if (matrix.shape().back() != made.shape()[dim]) continue;
        if (!along) along.emplace(made, dim);
        if (Ints rows = along->In(matrix); !rows.empty())
          found.push_back({name, false, false, std::move(rows), dim});
      }
    }
    return found;
  }

  // Which elements it is of the one tensor that the exporter took it from.
  std::vector<Origin> OriginsAsElements(const Op* param) const {
    const auto from = written_.taken_from.find(param->attrs.String("name"));
    if (from == written_.taken_from.end()) return {};
    const auto tensor = module_.tensors.find(from->second);
    if (tensor == module_.tensors.end()) return {};
    const Squeezed made = DataOf(param);
    const size_t behind = made.shape().size();
    Ints elements = RowsAlong(made, behind).In(DataOf(tensor->second, made.type()));
    if (elements.empty()) return {};
    return {{from->second, false, false, std::move(elements), behind}};
  }

  static Value* Make(Builder& b, Value* v, const Origin& how, const TensorType& made) {
    Shape of = v->type.shape, to = made.shape;
    std::erase(of, 1);
    std::erase(to, 1);
    if (how.turned) {
      Ints perm(of.size());
      for (size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<int64_t>(d);
      v = b.Transpose(b.Reshape(v, of), Turned(std::move(perm)));
    }
    if (!how.rows.empty()) {
      const Shape around = Around(to, how.across);
      const int64_t width = how.across == to.size() ? 1 : of.back();
      v = Rows(b, b.Reshape(v, {v->type.num_elements() / width, width}), how.rows);
      if (around[2] > 1) {
        v = b.Transpose(b.Reshape(v, {around[0], around[2], around[1]}), {0, 2, 1});
      }
    }
    if (how.function) v = how.function->make(b, v);
    if (how.plus_one) v = b.Add(v, b.Scalar(v->type.dtype, 1));
    return b.Reshape(v, made.shape);
  }

  static Value* Rows(Builder& b, Value* matrix, const Ints& rows) {
    const auto count = static_cast<int64_t>(rows.size());
    if (matrix->type.shape[0] == 1) return b.BroadcastTo(matrix, {count, matrix->type.shape[1]});
    HostTensor ids(DType::kI64, {count});
    bool in_turn = true;
    for (int64_t i = 0; i < count; ++i) {
      ids.SetDouble(i, static_cast<double>(rows[i]));
      in_turn &= rows[i] == rows[0] + i;
    }
    if (in_turn) return b.Slice(matrix, 0, rows[0], rows[0] + count);
    return b.Make("gather", {matrix, b.Constant(std::move(ids))}, {{"axis", 0}});
  }

  // A tensor that is nowhere in the graph, and equal: the two are tied.
  void FindTied(Op* param) const {
    const Squeezed data = DataOf(param);
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
      const std::string how = of.turned          ? " transposed"
                              : of.plus_one      ? " plus one"
                              : !of.rows.empty() ? ", a part of it"
                              : of.function      ? StrCat(" after ", of.function->name)
                                                 : "";
      graph_.notes.push_back(StrCat(module_.where, " has ",
                                    Counted(std::ssize(restored_), "tensor"),
                                    " of which the exporter made others: '", name, "' is '",
                                    of.name, "'", how, restored_.size() > 1 ? ", the first" : ""));
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
  std::map<std::pair<DType, bool>, Corners> corners_;
  std::vector<Op*> own_;  // parameters that the exporter left as they were
  std::set<std::string> named_;
  std::vector<std::pair<std::string, Origin>> restored_;
  std::vector<Op*> untold_;  // of data that say nothing
  std::vector<std::string> left_;
};

}  // namespace

void RestoreParams(Graph& graph, const ModuleParams& module, const WrittenDown& written) {
  Restorer(graph, module, written).Run();
}

}  // namespace shardc::onnx_import
