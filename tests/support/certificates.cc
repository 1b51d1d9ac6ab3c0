#include "tests/support/certificates.h"

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>

namespace ddprun::testing_support {
namespace {

using Key = std::shared_ptr<EVP_PKEY>;
using Certificate = std::shared_ptr<X509>;

// Returns a P-256 key, which is fast to make.
Key make_key() {
  EVP_PKEY* key = nullptr;
  EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_id(EVP_PKEY_EC, nullptr);
  EXPECT_EQ(EVP_PKEY_keygen_init(context), 1);
  EXPECT_EQ(EVP_PKEY_CTX_set_ec_paramgen_curve_nid(context, NID_X9_62_prime256v1), 1);
  EXPECT_EQ(EVP_PKEY_keygen(context, &key), 1);
  EVP_PKEY_CTX_free(context);
  return {key, EVP_PKEY_free};
}

Key make_rsa_key() {
  EVP_PKEY* key = nullptr;
  EVP_PKEY_CTX* context = EVP_PKEY_CTX_new_id(EVP_PKEY_RSA, nullptr);
  EXPECT_EQ(EVP_PKEY_keygen_init(context), 1);
  EXPECT_EQ(EVP_PKEY_CTX_set_rsa_keygen_bits(context, 2048), 1);
  EXPECT_EQ(EVP_PKEY_keygen(context, &key), 1);
  EVP_PKEY_CTX_free(context);
  return {key, EVP_PKEY_free};
}

void extend(X509* certificate, int what, const std::string& value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str());
  EXPECT_NE(extension, nullptr) << value;
  EXPECT_EQ(X509_add_ext(certificate, extension, -1), 1);
  X509_EXTENSION_free(extension);
}

// Order: what a certificate shall contain. Without an issuer the certificate is signed by its
// own key.
struct Order {
  std::string subject;
  X509* issuer = nullptr;
  EVP_PKEY* issuer_key = nullptr;
  Duration valid_for = std::chrono::hours(24);
  std::string names;  // empty: it is an authority
};
Certificate make_certificate(const Key& key, const Order& order) {
  Certificate certificate(X509_new(), X509_free);
  X509* x = certificate.get();
  X509_set_version(x, 2);
  std::uint32_t serial = 0;
  EXPECT_EQ(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial), 1);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(x), serial | 1U);
  X509_gmtime_adj(X509_getm_notBefore(x), -48L * 3600);
  X509_gmtime_adj(X509_getm_notAfter(x),
                  std::chrono::duration_cast<std::chrono::seconds>(order.valid_for).count());
  X509_set_pubkey(x, key.get());
  X509_NAME* name = X509_get_subject_name(x);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(order.subject.c_str()), -1, -1,
                             0);
  X509_set_issuer_name(x, order.issuer ? X509_get_subject_name(order.issuer) : name);
  if (order.names.empty()) {
    extend(x, NID_basic_constraints, "critical,CA:TRUE");
    extend(x, NID_key_usage, "critical,keyCertSign");
  } else {
    extend(x, NID_subject_alt_name, order.names);
    extend(x, NID_ext_key_usage, "serverAuth,clientAuth");
  }
  EXPECT_NE(X509_sign(x, order.issuer_key ? order.issuer_key : key.get(), EVP_sha256()), 0);
  return certificate;
}

template <class Write>
void write_file(const std::string& path, Write&& write) {
  std::remove(path.c_str());
  std::FILE* file = std::fopen(path.c_str(), "wx");
  ASSERT_NE(file, nullptr) << path;
  EXPECT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(write(file), 1) << path;
  EXPECT_EQ(std::fclose(file), 0);
}

}  // namespace

Authority::Authority(std::string directory, std::string name)
    : directory_(std::move(directory)), name_(std::move(name)), key_(make_key()) {
  certificate_ = make_certificate(key_, {.subject = "authority " + name_});
  write_file(ca_file(), [&](std::FILE* file) { return PEM_write_X509(file, certificate_.get()); });
}

Authority::Authority(std::string directory, const std::string& ca_file, const std::string& key_file)
    : directory_(std::move(directory)), name_("read") {
  std::FILE* const ca = std::fopen(ca_file.c_str(), "r");
  std::FILE* const key = std::fopen(key_file.c_str(), "r");
  if (ca) certificate_.reset(PEM_read_X509(ca, nullptr, nullptr, nullptr), X509_free);
  if (key) key_.reset(PEM_read_PrivateKey(key, nullptr, nullptr, nullptr), EVP_PKEY_free);
  EXPECT_TRUE(certificate_ && key_) << ca_file << " " << key_file;
  for (std::FILE* const file : {ca, key}) {
    if (file) std::fclose(file);
  }
}

IssuedFiles Authority::issue(const std::string& file, const CertificateOptions& options) const {
  const Key key = options.rsa ? make_rsa_key() : make_key();
  const Certificate certificate = make_certificate(key, {.subject = file,
                                                         .issuer = certificate_.get(),
                                                         .issuer_key = key_.get(),
                                                         .valid_for = options.valid_for,
                                                         .names = options.names});
  IssuedFiles files{directory_ + "/" + file + ".crt", directory_ + "/" + file + ".key"};
  write_file(files.cert, [&](std::FILE* to) { return PEM_write_X509(to, certificate.get()); });
  write_file(files.key, [&](std::FILE* to) {
    return PEM_write_PrivateKey(to, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  return files;
}

}  // namespace ddprun::testing_support
