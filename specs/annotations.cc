#include "specs/annotations.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/diagnostic.h"

namespace shardc {
namespace {

using Dim = TensorPlacement::Dim;

// How a dim is cut once the factors that say nothing are gone.
struct Cut {
  int64_t shards = 1, granule = 1, size = 0;  // size 0: not said
  std::vector<int64_t> segments;
};
constexpr int64_t kMaxSize = int64_t{1} << 40, kMaxSegments = 1 << 16;

class Translation {
 public:
  Translation(const DeviceConfiguration& c, std::string model, const Mesh& given)
      : c_(c), model_(std::move(model)), mesh_(given) {}

  Spec Run() {
    Spec spec;
    spec.name = StrCat("the configuration '", c_.name, "' of ", model_);
    if (mesh_.num_axes() == 0) {
      mesh_ = FindMesh();
      spec.mesh = mesh_.axes();
    }
    if (mesh_.num_ranks() != c_.num_devices) {
      throw Diagnostic("E2130", ExitCode::kBadSpec, "--mesh",
                       StrCat("the mesh ", mesh_.ToString(), " has ", mesh_.num_ranks(), " ranks, ",
                              spec.name, " is for ", c_.num_devices, " devices"),
                       "leave --mesh out, or give one of as many ranks");
    }
    // What makes a tensor says where it is made, what reads it where it is used.
    std::map<std::string, const TensorPlacement*> made, used;
    std::vector<const TensorPlacement*> in_order;
    for (const TensorPlacement& p : c_.tensors) {
      auto& list = p.made ? made : used;
      auto [first, is_first] = list.try_emplace(p.tensor, &p);
      if (is_first) {
        in_order.push_back(&p);
      } else if (!first->second->SamePlace(p)) {
        Fail(p, StrCat("it has '", p.tensor, "' elsewhere than node '", first->second->node, "'"),
             "let all nodes that read a tensor agree");
      }
    }
    for (const TensorPlacement* p : in_order) {
      auto maker = made.find(p->tensor);
      if (!p->made && maker != made.end() && maker->second->SamePlace(*p)) continue;
      spec.tensors.push_back(RuleOf(*p));
    }
    return spec;
  }

 private:
  [[noreturn]] void Fail(const TensorPlacement& p, std::string what, std::string fix = {}) const {
    throw Diagnostic("E2130", ExitCode::kBadSpec, WhereOf(p), std::move(what), std::move(fix));
  }
  std::string WhereOf(const TensorPlacement& p) const {
    return StrCat(model_, ": node '", p.node, "'");
  }

  Cut CutOf(const TensorPlacement& p, const Dim& dim) const {
    Cut cut;
    cut.size = 1;
    int64_t before = 1, given = 1;  // given: the product of the sizes that are
    bool found = false;
    for (const TensorPlacement::Factor& f : dim.factors) {
      if (f.size > kMaxSize / given) {
        Fail(p, StrCat("dim ", dim.axis, " of '", p.tensor, "' is too large"));
      }
      given *= std::max<int64_t>(f.size, 1);
      cut.size *= f.size;
      if (f.shards > 1 && found) {
        Fail(p, StrCat("dim ", dim.axis, " of '", p.tensor, "' is cut at two levels"));
      }
      if (f.shards > 1) {
        found = true;
        cut.shards = f.shards;
        if (before > kMaxSegments) {
          Fail(p, StrCat("dim ", dim.axis, " of '", p.tensor, "' is cut in ", before, " parts"));
        }
        cut.segments.assign(before, f.size);
        if (before > 1 && f.size == 0) {
          Fail(p, StrCat("a part of dim ", dim.axis, " of '", p.tensor, "' is cut, whose size is ",
                         "not given"));
        }
      } else if (f.size == 0) {
        continue;
      } else if (found) {
        cut.granule *= f.size;
        for (int64_t& s : cut.segments) s *= f.size;
      } else {
        before *= f.size;
      }
    }
    if (cut.segments.size() <= 1) cut.segments.clear();
    return cut;
  }

  // For each device, which of the dim's shards it holds.
  std::vector<int64_t> ShardOnDevices(const TensorPlacement& p, size_t dim) const {
    int64_t inner = 1;
    for (size_t d = dim + 1; d < p.dims.size(); ++d) inner *= CutOf(p, p.dims[d]).shards;
    const int64_t shards = CutOf(p, p.dims[dim]).shards;
    std::vector<int64_t> held(c_.num_devices, -1);
    for (size_t i = 0; i < p.devices.size(); ++i) {
      for (int64_t device : p.devices[i]) {
        held[device] = static_cast<int64_t>(i) / inner % shards;
      }
    }
    return held;
  }

  void CheckIsEverywhere(const TensorPlacement& p) const {
    size_t n = 0;
    for (const auto& devices : p.devices) n += devices.size();
    if (n == static_cast<size_t>(c_.num_devices)) return;
    Fail(p,
         StrCat("'", p.tensor, "' is on ", n, " of ", c_.num_devices,
                " devices; here every rank has a part of every tensor, or all of it"),
         "put it on all devices");
  }

  // A mesh whose axes are the digits of a device's number that shards follow.
  Mesh FindMesh() const {
    std::set<int64_t> bounds = {1, c_.num_devices};
    for (const TensorPlacement& p : c_.tensors) {
      CheckIsEverywhere(p);
      for (size_t d = 0; d < p.dims.size(); ++d) {
        const std::vector<int64_t> held = ShardOnDevices(p, d);
        const int64_t shards = CutOf(p, p.dims[d]).shards;
        auto changed =
            std::find_if(held.begin(), held.end(), [&](int64_t s) { return s != held[0]; });
        const int64_t stride = changed - held.begin();
        for (int64_t i = 0; i < c_.num_devices; ++i) {
          if (held[i] == i / stride % shards) continue;
          Fail(p,
               StrCat("the shards of dim ", p.dims[d].axis, " of '", p.tensor,
                      "' do not lie on the devices as along an axis of a mesh"),
               "give --mesh, if there is one along which they do");
        }
        bounds.insert({stride, stride * shards});
      }
    }
    std::vector<MeshAxis> axes;
    for (auto b = bounds.rbegin(); b != bounds.rend() && *b > 1; ++b) {
      const int64_t inner = *std::next(b);
      if (*b % inner != 0) {
        throw Diagnostic("E2130", ExitCode::kBadSpec, model_,
                         StrCat("the shards of the tensors of configuration '", c_.name,
                                "' do not lie along the axes of one mesh"),
                         "give --mesh, if there is one");
      }
      axes.push_back({StrCat("d", axes.size()), *b / inner});
    }
    return Mesh(std::move(axes));
  }

  // The axes over which the dim is cut, major to minor.
  std::vector<std::string> AxesOf(const TensorPlacement& p, size_t dim) const {
    const std::vector<int64_t> held = ShardOnDevices(p, dim);
    int64_t rest = CutOf(p, p.dims[dim]).shards;
    std::vector<std::string> axes;
    while (rest > 1) {
      const size_t before = axes.size();
      for (int a = 0; a < mesh_.num_axes(); ++a) {
        const int64_t size = mesh_.axis_size(a);
        if (size == 1 || rest % size != 0) continue;
        bool follows = true;
        for (int64_t i = 0; i < c_.num_devices && follows; ++i) {
          follows = held[i] % rest / (rest / size) == mesh_.Coordinate(i, a);
        }
        if (!follows) continue;
        axes.push_back(mesh_.axes()[a].name);
        rest /= size;
        break;
      }
      if (axes.size() == before) {
        Fail(p,
             StrCat("the shards of dim ", p.dims[dim].axis, " of '", p.tensor,
                    "' do not lie along axes of the mesh ", mesh_.ToString()),
             "leave --mesh out, so that one is found");
      }
    }
    return axes;
  }

  SpecRule RuleOf(const TensorPlacement& p) const {
    CheckIsEverywhere(p);
    SpecRule rule;
    rule.where.file = WhereOf(p);
    rule.match = p.tensor;
    for (size_t d = 0; d < p.dims.size(); ++d) {
      const Cut cut = CutOf(p, p.dims[d]);
      for (std::string& axis : AxesOf(p, d)) {
        CutDim c;
        c.dim = static_cast<int>(std::clamp<int64_t>(p.dims[d].axis, -1000, 1000));
        c.axis = std::move(axis);
        c.segments = cut.segments;
        c.granule = cut.granule;
        c.size = cut.size;
        rule.cuts.push_back(std::move(c));
      }
    }
    return rule;
  }

  const DeviceConfiguration& c_;
  std::string model_;
  Mesh mesh_;
};

}  // namespace

const DeviceConfiguration& ChooseConfiguration(const std::vector<DeviceConfiguration>& have,
                                               const std::string& name, const std::string& model) {
  std::vector<std::string> names;
  for (const DeviceConfiguration& c : have) {
    names.push_back(c.name);
    if (c.name == name) return c;
  }
  if (name.empty() && have.size() == 1) return have[0];
  const std::string what = have.empty() ? StrCat(model, " has no annotations for several devices")
                           : name.empty()
                               ? StrCat(model, " has ", have.size(), " device configurations")
                               : StrCat(model, " has no device configuration '", name, "'");
  std::string fix = "choose another spec";
  if (!have.empty()) fix = "use --spec onnx:NAME, one of: " + Join(names, ", ");
  if (std::string near = DidYouMean(name, names); !near.empty()) fix += "; " + near;
  throw Diagnostic("E2131", ExitCode::kBadSpec,
                   name.empty() ? "--spec onnx" : "--spec onnx:" + name, what, fix);
}

Spec SpecOfAnnotations(const DeviceConfiguration& configuration, const std::string& model,
                       const Mesh& given) {
  return Translation(configuration, model, given).Run();
}

}  // namespace shardc
