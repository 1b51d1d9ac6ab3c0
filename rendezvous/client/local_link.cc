#include "rendezvous/client/deliver.h"
#include "rendezvous/service/server.h"

namespace ddprun {

namespace {

class LocalLink final : public ServiceLink {
 public:
  LocalLink(RendezvousServer& server, ServiceLinkEvents events)
      : server_(server), events_(std::move(events)) {}

  ~LocalLink() override {
    if (connection_) server_.detach(*connection_);
  }

  void start() override {
    connection_ =
        server_.attach([this](const ServiceMessage& message) { take(message); }, events_.ranks);
    server_.receive(*connection_, events_.hello(""));
  }

  void send(const AgentMessage& message) override {
    if (connection_) server_.receive(*connection_, message);
  }

  bool send_now(const AgentMessage& message) override {
    send(message);
    return connection_.has_value();
  }

  std::optional<HostPort> place() const override { return std::nullopt; }
  std::string instance() const override { return instance_; }

  void leave(std::optional<Leave> leave, std::function<void()> then) override {
    if (connection_) {
      if (leave) server_.receive(*connection_, *leave);
      server_.detach(*connection_);
      connection_.reset();
    }
    then();
  }

 private:
  void take(const ServiceMessage& message) {
    if (const Welcome* welcome = std::get_if<Welcome>(&message)) instance_ = welcome->instance;
    if (const Refused* refused = std::get_if<Refused>(&message)) {
      return events_.refused({refused->reason});
    }
    deliver(message, events_);
  }

  RendezvousServer& server_;
  ServiceLinkEvents events_;
  std::optional<AgentConnectionId> connection_;
  std::string instance_;
};

}  // namespace

std::shared_ptr<ServiceLink> make_local_link(RendezvousServer& server, ServiceLinkEvents events) {
  return std::make_shared<LocalLink>(server, std::move(events));
}

}  // namespace ddprun
