# The demonstration in a container:  docker build -t gnn-repair . && docker run --rm gnn-repair
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY gnn_repair gnn_repair
# PyTorch without CUDA, gigabytes smaller.
RUN pip install --no-cache-dir --constraint constraints.txt --index-url https://download.pytorch.org/whl/cpu torch \
 && pip install --no-cache-dir --constraint constraints.txt . \
 && useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["gnn-repair"]
CMD ["demo"]
