# The project with the versions of requirements.lock, for a CPU:
#   docker build -t everytoken . && docker run --rm everytoken
# The run of the environment `test` fetches its text from PyPI; results are in /home/everytoken/project/data.
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home everytoken
USER everytoken
WORKDIR /home/everytoken/project
# torch from PyPI comes with CUDA, which is gigabytes
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu PATH=/home/everytoken/project/.venv/bin:$PATH
# what is installed changes seldom, and stays cached when only the sources change
COPY --chown=everytoken requirements.lock pyproject.toml Makefile README.md ./
COPY --chown=everytoken src src
RUN make .venv/installed
COPY --chown=everytoken . .
CMD ["kedro", "run", "--env", "test"]
