// The part of ProcessGroup that exchanges values and strings of any size. It is made of
// collectives on bytes.
#include "ddprun/objects.h"

#include <algorithm>
#include <numeric>

#include "base/concat.h"
#include "base/deadline.h"
#include "worker_lib/group/argument_check.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

// If values are larger than this and of very different sizes, padding all to the largest costs
// more than one broadcast for each rank.
constexpr std::int64_t kPaddingIsCheap = std::int64_t{64} << 10;

nlohmann::json decode(const std::string& bytes, int from) {
  try {
    return nlohmann::json::from_cbor(bytes, /*strict=*/true, /*allow_exceptions=*/true,
                                     nlohmann::json::cbor_tag_handler_t::store);
  } catch (const nlohmann::json::exception& malformed) {
    refuse(concat("decode the value of rank ", from, ": ", malformed.what()),
           DistError::Kind::kCorrupt);
  }
}

std::vector<nlohmann::json> decode_all(const std::vector<std::string>& texts) {
  std::vector<nlohmann::json> values;
  for (const std::string& text : texts) values.push_back(decode(text, values.size()));
  return values;
}

// Returns the bytes as a tensor on the host that shares their memory.
torch::Tensor tensor_of(const std::string& bytes) {
  return torch::from_blob(const_cast<char*>(bytes.data()),
                          {static_cast<std::int64_t>(bytes.size())}, torch::kUInt8);
}

std::string bytes_of(const torch::Tensor& tensor) {
  const torch::Tensor host = tensor.cpu();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

}  // namespace

// One exchange: several collectives that share one deadline.
class ProcessGroup::Exchange {
 public:
  // Runs `body` with the exchange. call: the program's call. root: checked, if there is one.
  template <class Body>
  static auto run(ProcessGroup& group, const char* call, std::optional<int> root,
                  std::optional<Timeout> timeout, Body body) {
    Exchange exchange(group, group.check_for(call), timeout);
    return with_dist_errors(call, [&] {
      if (root) exchange.check.root(*root);
      return body(exchange);
    });
  }

  // Encodes as CBOR, not JSON text. Numbers keep every bit (JSON has no NaN or infinity), strings
  // need not be UTF-8, binary values stay binary, and CBOR is shorter.
  std::string encode(const nlohmann::json& value) const {
    if (value.is_discarded())
      check.refuse("value is a discarded JSON value (the result of a failed parse)");
    std::string bytes;
    nlohmann::json::to_cbor(value, nlohmann::detail::output_adapter<char>(bytes));
    return bytes;
  }

  std::vector<std::string> all_gather(const std::string& bytes) {
    const std::vector<std::int64_t> sizes = sizes_of_all(bytes.size());
    const std::int64_t largest = *std::ranges::max_element(sizes);
    const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::vector<std::string> texts;
    if (largest > kPaddingIsCheap && largest * group_.size() > 2 * all) {
      for (int r = 0; r < group_.size(); ++r) {
        const torch::Tensor one =
            r == group_.rank() ? on_device(tensor_of(bytes)) : room_for(sizes[r]);
        group_.broadcast(one, {.root = r, .timeout = left(deadline_)});
        texts.push_back(bytes_of(one));
      }
      return texts;
    }
    const torch::Tensor padded = torch::zeros({largest}, torch::kUInt8);
    padded.narrow(0, 0, bytes.size()).copy_(tensor_of(bytes));
    const torch::Tensor together = room_for({group_.size(), largest});
    group_.all_gather_into_tensor(together, on_device(padded), {.timeout = left(deadline_)});
    for (int r = 0; r < group_.size(); ++r) {
      texts.push_back(bytes_of(together[r].narrow(0, 0, sizes[r])));
    }
    return texts;
  }

  std::string broadcast(const std::string& bytes, int root) {
    const bool is_root = root == group_.rank();
    const torch::Tensor size = number(is_root ? bytes.size() : 0);
    group_.broadcast(size, {.root = root, .timeout = left(deadline_)});
    const torch::Tensor text =
        is_root ? on_device(tensor_of(bytes)) : room_for(size.cpu().item<std::int64_t>());
    group_.broadcast(text, {.root = root, .timeout = left(deadline_)});
    return bytes_of(text);
  }

  // Only the root receives data.
  std::vector<std::string> gather(const std::string& bytes, int root) {
    const bool is_root = root == group_.rank();
    std::vector<std::int64_t> incoming = sizes_of_all(bytes.size());
    if (!is_root) std::ranges::fill(incoming, 0);
    std::vector<std::int64_t> outgoing(incoming.size(), 0);
    outgoing[root] = bytes.size();
    std::vector<std::string> texts = all_to_all(bytes, outgoing, incoming);
    if (!is_root) texts.clear();
    return texts;
  }

  std::string scatter(const std::vector<std::string>& texts, int root) {
    std::string all;
    std::vector<std::int64_t> outgoing(group_.size(), 0);
    std::vector<torch::Tensor> sizes;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      all += texts[r];
      outgoing[r] = texts[r].size();
      sizes.push_back(number(texts[r].size()));
    }
    const torch::Tensor mine = number(0);
    group_.scatter(mine, sizes, {.root = root, .timeout = left(deadline_)});
    std::vector<std::int64_t> incoming(outgoing.size(), 0);
    incoming[root] = mine.cpu().item<std::int64_t>();
    return all_to_all(all, outgoing, incoming)[root];
  }

  const ArgumentCheck check;

 private:
  Exchange(ProcessGroup& group, const ArgumentCheck& arguments, std::optional<Timeout> timeout)
      : check(arguments), group_(group), deadline_(check.timeout(timeout, group.timeout_)) {}

  torch::Tensor on_device(const torch::Tensor& host) const {
    return host.to(group_.object_device_);
  }
  torch::Tensor room_for(torch::IntArrayRef bytes) const {
    return torch::empty(bytes, torch::TensorOptions(torch::kUInt8).device(group_.object_device_));
  }
  torch::Tensor number(std::size_t value) const {
    return on_device(torch::full({1}, static_cast<std::int64_t>(value), torch::kInt64));
  }

  std::vector<std::int64_t> sizes_of_all(std::size_t mine) {
    const torch::Tensor sizes = on_device(torch::empty({group_.size()}, torch::kInt64));
    group_.all_gather_into_tensor(sizes, number(mine), {.timeout = left(deadline_)});
    const torch::Tensor host = sizes.cpu();
    const auto* begin = host.const_data_ptr<std::int64_t>();
    return {begin, begin + group_.size()};
  }

  // Returns the bytes that came from each rank.
  std::vector<std::string> all_to_all(const std::string& bytes,
                                      const std::vector<std::int64_t>& outgoing,
                                      const std::vector<std::int64_t>& incoming) {
    const torch::Tensor got =
        room_for(std::accumulate(incoming.begin(), incoming.end(), std::int64_t{0}));
    group_.all_to_all_single(
        got, on_device(tensor_of(bytes)),
        {.output_splits = incoming, .input_splits = outgoing, .timeout = left(deadline_)});
    std::vector<std::string> texts;
    std::int64_t begin = 0;
    for (const std::int64_t length : incoming) {
      texts.push_back(bytes_of(got.narrow(0, begin, length)));
      begin += length;
    }
    return texts;
  }

  ProcessGroup& group_;
  const Deadline deadline_;
};

std::vector<std::string> ProcessGroup::all_gather_bytes(const std::string& bytes,
                                                        std::optional<Timeout> timeout) {
  return Exchange::run(*this, "all_gather_bytes", std::nullopt, timeout,
                       [&](Exchange& exchange) { return exchange.all_gather(bytes); });
}

std::string ProcessGroup::broadcast_bytes(const std::string& bytes, int root,
                                          std::optional<Timeout> timeout) {
  return Exchange::run(*this, "broadcast_bytes", root, timeout,
                       [&](Exchange& exchange) { return exchange.broadcast(bytes, root); });
}

std::vector<std::string> ProcessGroup::gather_bytes(const std::string& bytes, int root,
                                                    std::optional<Timeout> timeout) {
  return Exchange::run(*this, "gather_bytes", root, timeout,
                       [&](Exchange& exchange) { return exchange.gather(bytes, root); });
}

std::string ProcessGroup::scatter_bytes(const std::vector<std::string>& bytes, int root,
                                        std::optional<Timeout> timeout) {
  return Exchange::run(*this, "scatter_bytes", root, timeout, [&](Exchange& exchange) {
    exchange.check.roots_values("bytes", bytes.size(), root);
    return exchange.scatter(bytes, root);
  });
}

std::vector<nlohmann::json> ProcessGroup::all_gather_object(const nlohmann::json& value,
                                                            std::optional<Timeout> timeout) {
  return Exchange::run(*this, "all_gather_object", std::nullopt, timeout, [&](Exchange& exchange) {
    return decode_all(exchange.all_gather(exchange.encode(value)));
  });
}

nlohmann::json ProcessGroup::broadcast_object(const nlohmann::json& value, int root,
                                              std::optional<Timeout> timeout) {
  return Exchange::run(*this, "broadcast_object", root, timeout, [&](Exchange& exchange) {
    return decode(exchange.broadcast(root == rank() ? exchange.encode(value) : "", root), root);
  });
}

std::vector<nlohmann::json> ProcessGroup::gather_object(const nlohmann::json& value, int root,
                                                        std::optional<Timeout> timeout) {
  return Exchange::run(*this, "gather_object", root, timeout, [&](Exchange& exchange) {
    return decode_all(exchange.gather(exchange.encode(value), root));
  });
}

nlohmann::json ProcessGroup::scatter_object(const std::vector<nlohmann::json>& values, int root,
                                            std::optional<Timeout> timeout) {
  return Exchange::run(*this, "scatter_object", root, timeout, [&](Exchange& exchange) {
    exchange.check.roots_values("values", values.size(), root);
    std::vector<std::string> texts;
    for (const nlohmann::json& value : values) texts.push_back(exchange.encode(value));
    return decode(exchange.scatter(texts, root), root);
  });
}

void detail::refuse_to_write_object() { refuse(error_in_flight("write an object").message()); }

void detail::refuse_to_read_object() {
  refuse(error_in_flight("read an object").message(), DistError::Kind::kCorrupt);
}

}  // namespace ddprun
