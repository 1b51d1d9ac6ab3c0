// worker_probe collectives DIRECTORY: makes the calls that DIRECTORY/in.RANK lists, and writes
// the results to ours.RANK there. gloo_equality_test.py makes the same calls with PyTorch's gloo.
//
// A call is a tuple (name, op, root, premul factor, inputs, outputs): two lists of tensors.
#include <torch/torch.h>

#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/integration/worker_lib/probes.h"

namespace collectives_probe {
namespace {

using ddprun::ProcessGroup;
using ddprun::ReduceOp;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

ReduceOp op_called(const std::string& name) {
  for (int op = 0; op <= static_cast<int>(ReduceOp::kPremulSum); ++op) {
    if (name == to_text(static_cast<ReduceOp>(op))) return static_cast<ReduceOp>(op);
  }
  return ReduceOp::kSum;  // for a call that reduces nothing
}

Tensors tensors_of(const c10::IValue& list) {
  Tensors tensors;
  for (const c10::IValue& one : list.toListRef()) tensors.push_back(one.toTensor());
  return tensors;
}

std::vector<std::int64_t> rows_of(const Tensors& list) {
  std::vector<std::int64_t> rows;
  for (const Tensor& one : list) rows.push_back(one.size(0));
  return rows;
}

// Makes the call. Returns its results on this rank.
Tensors make(ProcessGroup& group, const std::vector<c10::IValue>& call) {
  const std::string name = call[0].toStringRef();
  const ReduceOp op = op_called(call[1].toStringRef());
  const int root = static_cast<int>(call[2].toInt());
  const double factor = call[3].toDouble();
  const Tensors in = tensors_of(call[4]);
  const Tensors out = tensors_of(call[5]);
  if (name == "all_reduce") {
    group.all_reduce(in[0], {.op = op, .premul_factor = factor});
    return in;
  }
  if (name == "reduce") {
    group.reduce(in[0], {.root = root, .op = op, .premul_factor = factor});
    return group.rank() == root ? in : Tensors{};
  }
  if (name == "broadcast") {
    group.broadcast(in[0], {.root = root});
    return in;
  }
  if (name == "reduce_scatter") {
    group.reduce_scatter(out[0], in, {.op = op, .premul_factor = factor});
  } else if (name == "reduce_scatter_tensor") {
    group.reduce_scatter_tensor(out[0], torch::cat(in), {.op = op, .premul_factor = factor});
  } else if (name == "all_gather") {
    group.all_gather(out, in[0]);
  } else if (name == "all_gather_into_tensor") {
    group.all_gather_into_tensor(out[0], in[0]);
  } else if (name == "gather") {
    group.gather(out, in[0], {.root = root});
  } else if (name == "scatter") {
    group.scatter(out[0], in, {.root = root});
  } else if (name == "all_to_all") {
    group.all_to_all(out, in);
  } else if (name == "all_to_all_single") {
    const Tensor all = torch::cat(out);
    group.all_to_all_single(all, torch::cat(in),
                            {.output_splits = rows_of(out), .input_splits = rows_of(in)});
    return {all};
  } else {
    TORCH_CHECK(false, "no call '", name, "'");
  }
  return out;
}

}  // namespace

int run(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: worker_probe collectives DIRECTORY\n");
    return 2;
  }
  torch::set_num_threads(1);
  auto ctx = ddprun::init();
  const auto file = [&](const char* name) {
    return std::string(argv[1]) + "/" + name + "." + std::to_string(ctx.rank());
  };
  std::ifstream calls(file("in"), std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(calls), {}};
  const c10::IValue list = torch::pickle_load(bytes);
  c10::List<c10::List<Tensor>> results;
  for (const c10::IValue& call : list.toListRef())
    results.push_back(c10::List<Tensor>(make(ctx.group(), call.toTupleRef().elements().vec())));
  const std::vector<char> ours = torch::pickle_save(results);
  std::ofstream(file("ours"), std::ios::binary)
      .write(ours.data(), static_cast<std::streamsize>(ours.size()));
  return 0;
}

}  // namespace collectives_probe
