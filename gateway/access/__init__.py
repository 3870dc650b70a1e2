"""Who may use the API and how much of it, for HTTP and gRPC alike."""
