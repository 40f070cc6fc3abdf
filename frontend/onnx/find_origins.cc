#include "frontend/onnx/find_origins.h"

#include <algorithm>
#include <functional>
#include <set>

#include "frontend/onnx/affine.h"
#include "frontend/onnx/names.h"
#include "ir/contains.h"

namespace shardc::onnx_import {
namespace {

std::string KeyOf(const Shape& shape, const HostTensor& corner) {
  return ShapeToString(shape) +
         std::string(reinterpret_cast<const char*>(corner.raw()), corner.bytes());
}

// TorchScript's tensors without a name ("onnx::Add_7") have one after the module that reads them,
// as if all were called "weight" or "bias".
bool IsGuess(const std::string& name) { return name.find("::") != name.npos; }

class Teller {
 public:
  Teller(const Graph& graph, const ModuleParams& module, const Op& param,
         const std::vector<Origin>& found)
      : graph_(graph),
        module_(module),
        param_(param),
        found_(found),
        users_(param.result()->users),
        name_(param.attrs.String("name")),
        aliases_(param.attrs.StringList("aliases", {})) {
    for (const std::string& alias : aliases_) parts_.insert(LastPart(alias));
    for (const Op* user : users_) {
      for (const std::string& alias : aliases_) {
        if (alias.starts_with(user->site + ".")) below_.insert(alias.substr(user->site.size()));
      }
    }
  }

  std::optional<std::vector<std::optional<Origin>>> Run() {
    const auto itself = std::ranges::find_if(found_, [&](const Origin& o) { return IsItself(o); });
    std::vector<std::optional<Origin>> of_users;
    int itself_or_untold = 0, untold = 0;
    for (const Op* user : users_) {
      const Origin* of = Of(*user);
      untold += of == nullptr;
      if (of == nullptr && itself != found_.end()) of = &*itself;
      if (of == nullptr || unclear_ || MayBeAnother(*user, *of)) return std::nullopt;
      itself_or_untold += IsItself(*of);
      of_users.push_back(IsItself(*of) ? std::nullopt : std::optional(*of));
    }
    // It has the name of one of its uses, and that may be the one that nothing tells.
    if (untold > 0 && itself_or_untold > 1) return std::nullopt;
    return of_users;
  }

 private:
  bool IsItself(const Origin& o) const {
    return o.name == name_ && !o.turned && o.affine == Affine() && ShapeOf(o) == param_.out().shape;
  }
  bool Fits(const Origin& o) const { return CanBe(graph_, module_, param_, o.name); }
  const Shape& ShapeOf(const Origin& o) const { return module_.tensors.at(o.name).shape; }

  template <typename Condition>
  std::vector<const Origin*> Select(Condition condition) const {
    std::vector<const Origin*> selected;
    for (const Origin& o : found_) {
      if (condition(o)) selected.push_back(&o);
    }
    return selected;
  }

  // Null where nothing tells.
  const Origin* Of(const Op& user) {
    const std::string module = user.site + ".";
    std::vector<const Origin*> fitting = Select([&](const Origin& o) {
      if (!IsItself(o) && !Fits(o)) return false;
      if (users_.size() == 1 && Contains(aliases_, o.name)) return true;
      return o.name.starts_with(module) && (parts_.empty() || parts_.contains(LastPart(o.name)));
    });
    if (fitting.size() > 1) {
      std::erase_if(fitting, [&](const Origin* o) {
        return !below_.contains(o->name.substr(std::min(user.site.size(), o->name.size())));
      });
      unclear_ |= fitting.size() != 1;
    } else if (fitting.empty() && IsGuess(name_)) {
      fitting = Select([&](const Origin& o) {
        return o.affine == Affine() && !o.turned && Fits(o) && o.name == module + LastPart(o.name);
      });
      unclear_ |= fitting.size() > 1;
    }
    return fitting.empty() ? nullptr : fitting[0];
  }

  // Of two uses in one module, each may be of another one of its tensors.
  bool MayBeAnother(const Op& user, const Origin& of) const {
    const auto here = [&](const Op* other) { return other->site == user.site; };
    auto is_rival = [&](const Origin& o) {
      return o.name != of.name && o.name.starts_with(user.site + ".") && o.turned == of.turned &&
             o.affine == of.affine && graph_.FindState(o.name) == nullptr &&
             ShapeOf(o) == ShapeOf(of);
    };
    return std::ranges::count_if(users_, here) > 1 && std::ranges::any_of(found_, is_rival);
  }

  const Graph& graph_;
  const ModuleParams& module_;
  const Op& param_;
  const std::vector<Origin>& found_;
  const std::vector<Op*>& users_;
  const std::string name_;
  const Strings aliases_;
  std::set<std::string> parts_;  // of aliases: "weight"
  // What the exporter names, below the module of a use: of another one the same is meant.
  std::set<std::string> below_;
  bool unclear_ = false;  // several fit
};

}  // namespace

Squeezed DataOf(const ModuleParam& tensor, DType as) {
  return {tensor.source, tensor.dtype, as, tensor.shape};
}

const OriginFinder::Corners& OriginFinder::CornersOf(DType type, bool plus_one) {
  auto [it, is_new] = corners_.try_emplace({type, plus_one});
  if (!is_new) return it->second;
  for (const auto& [name, tensor] : module_.tensors) {
    const Squeezed data = DataOf(tensor, type);
    HostTensor corner = Corner(data);
    if (plus_one) Apply(kPlusOne, corner);
    it->second[KeyOf(data.shape(), corner)].push_back(name);
  }
  return it->second;
}

std::vector<Origin> OriginFinder::AsWhole(const Squeezed& made, bool plus_one) {
  std::vector<Origin> found;
  const Corners& corners = CornersOf(made.type(), plus_one);
  for (bool turned : {false, true}) {
    if (turned && made.shape().size() < 2) continue;
    const HostTensor own = Corner(made);
    const auto alike = turned ? corners.find(KeyOf(Turned(made.shape()), Turned(own)))
                              : corners.find(KeyOf(made.shape(), own));
    if (alike == corners.end()) continue;
    for (const std::string& name : alike->second) {
      const Origin how{name, turned, plus_one ? kPlusOne : Affine(), {}, 0};
      if (IsMadeOf(made, DataOf(module_.tensors.at(name), made.type()), how)) found.push_back(how);
    }
  }
  return found;
}

std::vector<Origin> OriginFinder::AsAffine(const Squeezed& made) const {
  std::vector<Origin> found;
  if (NumElements(made.shape()) < 8) return found;
  for (const auto& [name, tensor] : module_.tensors) {
    if (!IsFloat(tensor.dtype) || IsHalf(tensor.dtype)) continue;
    for (const bool turned : {false, true}) {
      if (turned && made.shape().size() < 2) continue;
      const auto affine = AffineOf(made, DataOf(tensor, made.type()), turned, false);
      if (affine) found.push_back({name, turned, *affine});
    }
  }
  return found;
}

// The last dim first, which it mostly is.
std::vector<Origin> OriginFinder::AsRows(const Squeezed& made) const {
  std::vector<Origin> found;
  for (size_t dim = made.shape().size(); dim-- > 0 && found.empty();) {
    std::optional<RowsAlong> along;
    for (const auto& [name, tensor] : module_.tensors) {
      const Squeezed matrix = DataOf(tensor, made.type());
      if (matrix.shape().empty()) continue;
      if (matrix.shape().back() != made.shape()[dim]) continue;
      if (!along) along.emplace(made, dim);
      if (Ints rows = along->In(matrix); !rows.empty())
        found.push_back({name, false, {}, std::move(rows), dim});
    }
  }
  return found;
}

std::vector<Origin> OriginFinder::AsElements(const Squeezed& made, const std::string& of) const {
  const auto tensor = module_.tensors.find(of);
  if (tensor == module_.tensors.end()) return {};
  const size_t behind = made.shape().size();
  Ints elements = RowsAlong(made, behind).In(DataOf(tensor->second, made.type()));
  if (elements.empty()) return {};
  return {{of, false, {}, std::move(elements), behind}};
}

bool CanBe(const Graph& graph, const ModuleParams& module, const Op& param,
           const std::string& name) {
  const Op* whole = graph.FindState(name);
  return whole == nullptr ||
         (whole != &param &&
          whole->out().SameTensor({param.out().dtype, module.tensors.at(name).shape}));
}

std::optional<std::vector<std::optional<Origin>>> OriginsOfUses(const Graph& graph,
                                                                const ModuleParams& module,
                                                                const Op& param,
                                                                const std::vector<Origin>& found) {
  return Teller(graph, module, param, found).Run();
}

}  // namespace shardc::onnx_import
