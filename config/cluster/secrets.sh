#!/bin/sh
# Make what the containers of compose.yaml read and neither git nor the image may have: the passwords of PostgreSQL and RabbitMQ,
# the token of clients, and a certificate of RabbitMQ with a CA of its own.
#   sh config/cluster/secrets.sh [FOLDER [HOST]]
# FOLDER is `secrets` beside this script. HOST is the name or IP address in the certificate, by which the nodes reach RabbitMQ:
# `rabbitmq`.
# Files that exist are kept, so delete one to get another. Certificates are valid for ten years.
set -eu
umask 077
folder=${1:-$(dirname "$0")/secrets}
host=${2:-rabbitmq}
case $host in
*:*) san=IP:$host ;;
*[!0-9.]*) san=DNS:$host ;;
*) san=IP:$host ;;
esac
user=trunkline
queue='trunkline\\.owner\\.gateway'

if ! command -v openssl >/dev/null; then
    echo "secrets.sh: the program openssl is missing; install it" >&2
    exit 1
fi
mkdir -p "$folder"
# Other users of this machine cannot enter the folder. Its files are readable, since the users of the containers have other ids.
chmod 700 "$folder"
cd "$folder"
new=$(mktemp -d ./.new.XXXXXX)
trap 'rm -rf "$new"' EXIT

# Give finished files their names: a script that was interrupted leaves no half of a secret.
publish() {
    mode=$1
    shift
    for name; do
        chmod "$mode" "$new/$name"
        mv "$new/$name" "$name"
    done
}

for name in postgres_password rabbitmq_password server_token; do
    if [ ! -s "$name" ]; then
        openssl rand -hex 32 >"$new/$name"
        publish 644 "$name"
    fi
done

# RabbitMQ gets the salted hash. Its user may use one queue, and publish to it through the default exchange.
openssl rand 4 >"$new/salt"
{ cat "$new/salt" && tr -d '\n' <rabbitmq_password; } | openssl dgst -sha256 -binary >"$new/digest"
hash=$(cat "$new/salt" "$new/digest" | openssl base64 -A)
cat >"$new/definitions.json" <<END
{
  "users": [
    {"name": "$user", "password_hash": "$hash", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
  ],
  "vhosts": [{"name": "/"}],
  "permissions": [
    {
      "user": "$user",
      "vhost": "/",
      "configure": "^$queue\$",
      "write": "^(amq\\\\.default|$queue)\$",
      "read": "^$queue\$"
    }
  ]
}
END
publish 644 definitions.json

cat >"$new/openssl.cnf" <<END
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical,CA:TRUE,pathlen:0
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = $san
END
if [ ! -s ca.pem ] || [ ! -s ca.key ]; then
    rm -f rabbitmq.pem rabbitmq.key
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$new/ca.key"
    openssl req -new -x509 -config "$new/openssl.cnf" -extensions ca -key "$new/ca.key" -out "$new/ca.pem" \
        -subj "/CN=Trunkline cluster CA" -sha256 -days 3650
    publish 600 ca.key
    publish 644 ca.pem
fi
if [ ! -s rabbitmq.pem ] || [ ! -s rabbitmq.key ]; then
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$new/rabbitmq.key"
    openssl req -new -config "$new/openssl.cnf" -key "$new/rabbitmq.key" -out "$new/request" -subj "/CN=$host"
    openssl x509 -req -in "$new/request" -CA ca.pem -CAkey ca.key -set_serial "0x$(openssl rand -hex 8)" \
        -extfile "$new/openssl.cnf" -extensions server -sha256 -days 3650 -out "$new/rabbitmq.pem" 2>/dev/null
    publish 644 rabbitmq.key rabbitmq.pem
fi

if [ ! -e nodes.env ]; then
    echo "# Variables of all nodes, such as TELEGRAM_TOKEN=…, which trunkline.toml names: token = \"\${TELEGRAM_TOKEN}\"" \
        >"$new/nodes.env"
    publish 600 nodes.env
fi
echo "The secrets are in $(pwd)."
