// PlayedService: a service of one agent. The test sends its messages.
#pragma once

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <string>

#include "base/host_port.h"

namespace ddprun::testing_support {

class PlayedService {
 public:
  explicit PlayedService(boost::asio::io_context& io)
      : acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}), agent_(io) {
    acceptor_.non_blocking(true);
  }
  HostPort address() const { return {"127.0.0.1", acceptor_.local_endpoint().port()}; }
  // Returns whether an agent has connected. Accepts it if one waits.
  bool has_accepted() {
    boost::system::error_code error;
    if (!agent_.is_open()) acceptor_.accept(agent_, error);
    return agent_.is_open();
  }
  boost::asio::ip::tcp::socket& agent() { return agent_; }
  void say(const std::string& bytes) { boost::asio::write(agent_, boost::asio::buffer(bytes)); }
  // Returns whether an agent has sent this text, on any connection. Reads what has come.
  bool has_heard(const std::string& text) {
    std::array<char, 4096> some;
    boost::system::error_code error;
    agent_.non_blocking(true);
    heard_.append(some.data(), agent_.read_some(boost::asio::buffer(some), error));
    return heard_.find(text) != heard_.npos;
  }

 private:
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::ip::tcp::socket agent_;
  std::string heard_;
};

}  // namespace ddprun::testing_support
