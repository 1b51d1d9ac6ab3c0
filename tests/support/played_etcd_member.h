// PlayedEtcdMember: a member of etcd that the test plays, on loopback. One owner thread, that of
// the io_context.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "rendezvous/transport/transport.h"

namespace ddprun::testing_support {

inline std::string http_answer(const std::string& body, const std::string& more = "") {
  return "HTTP/1.1 200 OK\r\n" + more + "Content-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

// It takes connections, and answers the requests by its steps. Without a step, it answers with what
// answer() returns.
class PlayedEtcdMember {
 public:
  // Step: what a member does after a request.
  struct Step {
    std::string bytes;  // sent
    bool closes = false;
  };

  explicit PlayedEtcdMember(boost::asio::io_context& io, TlsContextPtr tls = nullptr)
      : acceptor_(io, {boost::asio::ip::address_v4::loopback(), 0}), tls_(std::move(tls)) {
    accept();
  }
  ~PlayedEtcdMember() {
    for (const auto& one : connections_) one->transport->close();
  }

  HostPort address() const { return {"localhost", acceptor_.local_endpoint().port()}; }
  std::size_t accepted() const { return connections_.size(); }
  std::size_t open() const {
    return static_cast<std::size_t>(std::ranges::count_if(
        connections_, [](const auto& one) { return one->transport->is_open(); }));
  }
  // Sends bytes on the newest connection.
  void send(const std::string& bytes) { perform(*connections_.back(), {bytes}); }
  void close_newest() { connections_.back()->transport->close(); }

  std::deque<Step> steps;
  std::vector<std::string> requests;  // their bodies
  // Returns the answer to a request, by its path and body. At first that is the request's body.
  std::function<Step(const std::string& path, const std::string& body)> answer =
      [](const std::string&, const std::string& body) { return Step{http_answer(body)}; };

 private:
  struct Connection {
    TransportPtr transport;
    std::string received;
    std::deque<std::string> sent;  // stays valid
  };

  void accept() {
    acceptor_.async_accept(
        [this](const boost::system::error_code& error, boost::asio::ip::tcp::socket socket) {
          if (error) return;
          connections_.push_back(std::make_shared<Connection>());
          Connection& connection = *connections_.back();
          connection.transport = std::make_shared<Transport>(std::move(socket));
          if (tls_) connection.transport->start_tls(TlsChannel::service(tls_));
          read(connection);
          accept();
        });
  }

  void read(Connection& connection) {
    connection.transport->read([this, &connection](const Result<std::string_view>& bytes) {
      if (!bytes) return connection.transport->close();
      connection.received += *bytes;
      take(connection);
      if (connection.transport->is_open()) read(connection);
    });
  }

  void take(Connection& connection) {
    const std::size_t head = connection.received.find("\r\n\r\n");
    const std::size_t length = connection.received.find("Content-Length: ");
    if (head == std::string::npos || length == std::string::npos) return;
    const std::size_t size = std::stoul(connection.received.substr(length + 16));
    if (connection.received.size() < head + 4 + size) return;
    const std::size_t path = connection.received.find(' ') + 1;
    const std::size_t end_of_path = connection.received.find(' ', path);
    requests.push_back(connection.received.substr(head + 4, size));
    const std::string asked = connection.received.substr(path, end_of_path - path);
    connection.received.erase(0, head + 4 + size);
    if (steps.empty()) return perform(connection, answer(asked, requests.back()));
    const Step step = steps.front();
    steps.pop_front();
    perform(connection, step);
  }

  void perform(Connection& connection, const Step& step) {
    if (step.bytes.empty()) {
      if (step.closes) connection.transport->close();
      return;
    }
    connection.sent.push_back(step.bytes);
    connection.transport->write(
        {boost::asio::buffer(connection.sent.back())},
        [transport = connection.transport, closes = step.closes](const Result<void>&) {
          if (closes) transport->close();
        });
  }

  boost::asio::ip::tcp::acceptor acceptor_;
  TlsContextPtr tls_;
  std::vector<std::shared_ptr<Connection>> connections_;
};

}  // namespace ddprun::testing_support
