"""The gRPC port: our contract with clients, and KServe's."""
