#include "frontend/annotations.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "device_configuration.pb.h"
#include "frontend/onnx/load_model.h"
#include "frontend/onnx/names.h"
#include "ir/diagnostic.h"
#include "ir/output_file.h"

namespace shardc {
namespace {

namespace fields = onnx_fields;
using onnx_import::LoadedModel;
using onnx_import::RepeatedMessages;

constexpr int kNodeConfigurations = 10, kModelConfigurations = 26;
constexpr int64_t kMaxDevices = 1 << 20, kMaxSize = int64_t{1} << 40, kFirstIrVersion = 11;

class Reader {
 public:
  explicit Reader(const LoadedModel& model) : model_(model) {}

  std::vector<DeviceConfiguration> Run() {
    for (const std::string& bytes : RepeatedMessages(model_.proto, kModelConfigurations)) {
      AddConfiguration(Parse<fields::DeviceConfiguration>(bytes, model_.path));
    }
    for (const onnx::NodeProto& node : model_.proto.graph().node()) {
      where_ = StrCat(model_.path, ": node '", node.name(), "' (", node.op_type(), ")");
      for (const std::string& bytes : RepeatedMessages(node, kNodeConfigurations)) {
        Read(node, Parse<fields::NodeDeviceConfiguration>(bytes, where_));
      }
    }
    return std::move(found_);
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw Diagnostic("E1309", ExitCode::kBadModel, where_, what,
                     "mend the annotation, or choose another --spec");
  }

  template <typename T>
  T Parse(const std::string& bytes, const std::string& where) {
    T message;
    where_ = where;
    if (!message.ParseFromString(bytes)) Fail("its annotation for devices cannot be read");
    return message;
  }

  void AddConfiguration(const fields::DeviceConfiguration& c) {
    if (c.name().empty()) Fail("a device configuration has no name");
    if (c.num_devices() < 1 || c.num_devices() > kMaxDevices) {
      Fail(StrCat("device configuration '", c.name(), "' has ", c.num_devices(), " devices"));
    }
    for (const DeviceConfiguration& other : found_) {
      if (other.name == c.name()) Fail(StrCat("two device configurations are '", c.name(), "'"));
    }
    found_.push_back({c.name(), c.num_devices(), {}, false});
  }

  void Read(const onnx::NodeProto& node, const fields::NodeDeviceConfiguration& n) {
    auto it = std::find_if(found_.begin(), found_.end(),
                           [&](const auto& c) { return c.name == n.configuration_id(); });
    if (it == found_.end()) {
      Fail(StrCat("the model has no device configuration '", n.configuration_id(), "'"));
    }
    it->has_stages = it->has_stages || n.has_pipeline_stage();
    for (const fields::ShardingSpec& s : n.sharding_spec()) {
      it->tensors.push_back(Placement(node, s, it->num_devices));
    }
  }

  TensorPlacement Placement(const onnx::NodeProto& node, const fields::ShardingSpec& s,
                            int64_t num_devices) const {
    TensorPlacement p;
    p.tensor = s.tensor_name();
    p.node = node.name().empty() ? node.op_type() : node.name();
    auto has = [&](const auto& names) {
      return std::find(names.begin(), names.end(), p.tensor) != names.end();
    };
    p.made = has(node.output());
    if (p.tensor.empty() || (!p.made && !has(node.input()))) {
      Fail(StrCat("it says how tensor '", p.tensor,
                  "' is sharded, which it neither reads nor makes"));
    }
    int64_t shards = 1;
    for (const fields::ShardedDim& d : s.sharded_dim()) {
      p.dims.push_back(DimOf(p, d));
      for (const TensorPlacement::Factor& f : p.dims.back().factors) {
        shards *= f.shards;
        if (shards > kMaxDevices) Fail(StrCat("'", p.tensor, "' has ", shards, " shards"));
      }
    }
    p.devices = DevicesOf(p, s, num_devices);
    // Factors of one shard alone say nothing.
    std::erase_if(p.dims, [](const auto& d) {
      return std::all_of(d.factors.begin(), d.factors.end(),
                         [](const auto& f) { return f.shards == 1; });
    });
    return p;
  }

  TensorPlacement::Dim DimOf(const TensorPlacement& p, const fields::ShardedDim& d) const {
    if (!d.has_axis()) Fail(StrCat("a sharded dim of '", p.tensor, "' has no axis"));
    TensorPlacement::Dim dim{d.axis(), {}};
    for (const fields::SimpleShardedDim& f : d.simple_sharding()) {
      if (f.num_shards() < 1 || f.num_shards() > kMaxDevices) {
        Fail(StrCat("dim ", d.axis(), " of '", p.tensor, "' has ", f.num_shards(), " shards"));
      }
      if (f.dim_value() < 0 || f.dim_value() > kMaxSize) {
        Fail(StrCat("a part of dim ", d.axis(), " of '", p.tensor, "' has the size ",
                    f.dim_value()));
      }
      dim.factors.push_back({f.dim_value(), f.num_shards()});
    }
    return dim;
  }

  std::vector<std::vector<int64_t>> DevicesOf(const TensorPlacement& p,
                                              const fields::ShardingSpec& s,
                                              int64_t num_devices) const {
    std::map<int64_t, std::vector<int64_t>> groups;
    for (const fields::DeviceGroup& g : s.index_to_device_group_map()) {
      groups[g.key()].assign(g.value().begin(), g.value().end());
    }
    std::vector<std::vector<int64_t>> devices;
    std::set<int64_t> seen;
    for (int64_t key : s.device()) {
      auto group = groups.find(key);
      devices.push_back(group == groups.end() ? std::vector<int64_t>{key} : group->second);
      for (int64_t device : devices.back()) {
        if (device < 0 || device >= num_devices) {
          Fail(StrCat("'", p.tensor, "' is on device ", device, " of ", num_devices));
        }
        if (!seen.insert(device).second) {
          Fail(StrCat("device ", device, " has two shards of '", p.tensor, "'"));
        }
      }
    }
    if (static_cast<int64_t>(devices.size()) != p.num_shards()) {
      Fail(StrCat("'", p.tensor, "' has ", p.num_shards(), " shards and ", devices.size(),
                  " devices or groups of devices"));
    }
    return devices;
  }

  const LoadedModel& model_;
  std::string where_;
  std::vector<DeviceConfiguration> found_;
};

fields::ShardingSpec SpecOf(const TensorPlacement& p) {
  fields::ShardingSpec s;
  s.set_tensor_name(p.tensor);
  int64_t group = 0;
  for (const std::vector<int64_t>& devices : p.devices) {
    if (devices.size() == 1) {
      s.add_device(devices[0]);
      continue;
    }
    s.add_device(--group);
    fields::DeviceGroup* g = s.add_index_to_device_group_map();
    g->set_key(group);
    g->mutable_value()->Add(devices.begin(), devices.end());
  }
  for (const TensorPlacement::Dim& dim : p.dims) {
    fields::ShardedDim* d = s.add_sharded_dim();
    d->set_axis(dim.axis);
    for (const TensorPlacement::Factor& f : dim.factors) {
      fields::SimpleShardedDim* simple = d->add_simple_sharding();
      if (f.size > 0) simple->set_dim_value(f.size);
      simple->set_num_shards(f.shards);
    }
  }
  return s;
}

// Sets a repeated field, whether or not the headers know it.
void SetMessages(google::protobuf::Message& message, int field,
                 const std::vector<std::string>& serialized) {
  const auto* reflection = message.GetReflection();
  auto* unknown = reflection->MutableUnknownFields(&message);
  unknown->DeleteByNumber(field);
  if (const auto* known = message.GetDescriptor()->FindFieldByNumber(field)) {
    reflection->ClearField(&message, known);
  }
  for (const std::string& bytes : serialized) unknown->AddLengthDelimited(field, bytes);
}

// What the field holds, without the messages of this configuration.
template <typename T, typename Name>
std::vector<std::string> Others(const google::protobuf::Message& message, int field,
                                const std::string& configuration, Name name) {
  std::vector<std::string> kept;
  for (std::string& bytes : RepeatedMessages(message, field)) {
    T parsed;
    if (!parsed.ParseFromString(bytes) || name(parsed) != configuration) {
      kept.push_back(std::move(bytes));
    }
  }
  return kept;
}

void Annotate(onnx::ModelProto& model, const DeviceConfiguration& configuration) {
  auto models = Others<fields::DeviceConfiguration>(model, kModelConfigurations, configuration.name,
                                                    [](const auto& c) { return c.name(); });
  fields::DeviceConfiguration c;
  c.set_name(configuration.name);
  c.set_num_devices(static_cast<int32_t>(configuration.num_devices));
  models.push_back(c.SerializeAsString());
  SetMessages(model, kModelConfigurations, models);
  model.set_ir_version(std::max<int64_t>(model.ir_version(), kFirstIrVersion));

  std::map<std::string, fields::ShardingSpec> specs;
  for (const TensorPlacement& p : configuration.tensors) specs[p.tensor] = SpecOf(p);
  for (onnx::NodeProto& node : *model.mutable_graph()->mutable_node()) {
    fields::NodeDeviceConfiguration n;
    n.set_configuration_id(configuration.name);
    std::set<std::string> done;
    for (const auto* names : {&node.input(), &node.output()}) {
      for (const std::string& name : *names) {
        auto spec = specs.find(name);
        if (spec != specs.end() && done.insert(name).second) *n.add_sharding_spec() = spec->second;
      }
    }
    auto nodes = Others<fields::NodeDeviceConfiguration>(
        node, kNodeConfigurations, configuration.name,
        [](const auto& other) { return other.configuration_id(); });
    if (n.sharding_spec_size() > 0) nodes.push_back(n.SerializeAsString());
    SetMessages(node, kNodeConfigurations, nodes);
  }
}

// Files beside the model, by their paths from there.
std::set<std::string> ExternalFiles(const onnx::GraphProto& graph) {
  std::set<std::string> files;
  for (const auto& t : graph.initializer()) {
    if (t.data_location() != onnx::TensorProto::EXTERNAL) continue;
    for (const auto& entry : t.external_data()) {
      if (entry.key() == "location") files.insert(entry.value());
    }
  }
  return files;
}

}  // namespace

std::vector<DeviceConfiguration> ReadAnnotations(const std::string& path) {
  return Reader(onnx_import::LoadOnnx(path)).Run();
}

void WriteAnnotated(const std::string& path, const DeviceConfiguration& configuration,
                    const std::string& to) {
  namespace fs = std::filesystem;
  LoadedModel model = onnx_import::LoadOnnx(path);
  auto folder = [](const std::string& file) {
    return fs::weakly_canonical(fs::absolute(file).parent_path());
  };
  for (const std::string& file : ExternalFiles(model.proto.graph())) {
    if (folder(path) != folder(to)) {
      throw Diagnostic("E1403", ExitCode::kBadModel, to,
                       StrCat("the data of ", path, " lies in files beside it, and is not copied"),
                       "write the annotated model into the same folder");
    }
    std::error_code none;
    if (!fs::equivalent(folder(path) / file, to, none)) continue;
    throw Diagnostic("E1403", ExitCode::kBadModel, to,
                     StrCat("data of ", path, " is there, and would be overwritten"),
                     "give another file");
  }
  Annotate(model.proto, configuration);
  for (const auto& [i, bytes] : model.raw) {
    model.proto.mutable_graph()->mutable_initializer(i)->set_raw_data(bytes.data, bytes.size);
  }
  std::string bytes;
  if (!model.proto.SerializeToString(&bytes)) {
    throw Diagnostic("E1403", ExitCode::kBadModel, to, "the model is larger than protobuf takes",
                     "export it with external data");
  }
  WholeFile file(to);  // it may be the model itself
  file.Write(bytes);
  file.Commit();
}

}  // namespace shardc
